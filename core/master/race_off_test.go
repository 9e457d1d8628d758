//go:build !race

package master

const raceDetector = false
