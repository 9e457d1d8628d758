//go:build race

package transfer_test

// raceDetector: sync.Pool drops things at random then, so that allocations cannot be counted.
const raceDetector = true
