//go:build !race

package transfer_test

const raceDetector = false
