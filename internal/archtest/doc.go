// Package archtest holds the rules of the source tree that no compiler checks: which way imports
// point, what every package and file must have, and what must not be in any file. The rules are data
// in rules.go; the tests read the import graph with "go list".
package archtest
