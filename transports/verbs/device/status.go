package device

import "strconv"

// Status is ibv_wc_status: how a piece of work ended.
type Status uint8

// Statuses, with the values of the C API. After any but StatusOK the queue pair is in the error state.
const (
	StatusOK                Status = 0
	StatusLocalLength       Status = 1
	StatusLocalQPOperation  Status = 2
	StatusLocalEEC          Status = 3
	StatusLocalProtection   Status = 4
	StatusFlushed           Status = 5
	StatusMWBind            Status = 6
	StatusBadResponse       Status = 7
	StatusLocalAccess       Status = 8
	StatusRemoteInvalidReq  Status = 9
	StatusRemoteAccess      Status = 10
	StatusRemoteOperation   Status = 11
	StatusRetryExceeded     Status = 12
	StatusRNRRetryExceeded  Status = 13
	StatusLocalRDDViolation Status = 14
	StatusRemoteInvalidRD   Status = 15
	StatusRemoteAborted     Status = 16
	StatusInvalidEECN       Status = 17
	StatusInvalidEECState   Status = 18
	StatusFatal             Status = 19
	StatusResponseTimeout   Status = 20
	StatusGeneral           Status = 21
	StatusTagMatching       Status = 22
	StatusTagMatchingRndv   Status = 23
)

// Statuses is the number of known statuses.
const Statuses = 24

var statusNames = [Statuses]string{"success", "local length error", "local QP operation error", "local EEC operation error",
	"local protection error", "work flushed", "memory window bind error", "bad response", "local access error",
	"remote invalid request", "remote access error", "remote operation error", "transport retries exceeded",
	"receiver not ready retries exceeded", "local RDD violation", "remote invalid RD request", "remote aborted",
	"invalid EE context number", "invalid EE context state", "fatal error", "response timeout", "general error",
	"tag matching error", "tag matching rendezvous incomplete"}

// String is the status in words.
func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return "status " + strconv.Itoa(int(s))
}
