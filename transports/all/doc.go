// Package all links the transports of this binary, one file each: a build without a transport leaves
// its file out.
package all
