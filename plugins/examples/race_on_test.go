//go:build race

package examples

// raceDetector shows nothing in code that it does not see: guests in Go, which take most of a minute to compile under
// it, and whole traces are left to make test-plugins.
const raceDetector = true
