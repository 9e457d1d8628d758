//go:build race

package master

// raceDetector tells tests of memory and time that the race detector is on.
const raceDetector = true
