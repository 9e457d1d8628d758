package telemetry

import (
	"testing"

	"go.uber.org/goleak"
)

// The rotation library keeps one idle goroutine per log file for the life of the process.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("gopkg.in/natefinch/lumberjack%2ev2.(*Logger).millRun"))
}
