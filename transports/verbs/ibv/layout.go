//go:build !noverbs

package ibv

import "unsafe"

// Structures of <infiniband/verbs.h>, for 64-bit machines. The tag c is the name in C; fields after the last one that is
// needed are left out where C allocates the structure, and are padding where Go does.

type cDevice struct {
	_    [24]byte // two functions, node type, transport type
	Name [64]byte `c:"name"`
}

type cContextOps struct {
	_           [11]uintptr
	PollCQ      uintptr `c:"poll_cq"`
	ReqNotifyCQ uintptr `c:"req_notify_cq"`
	_           [12]uintptr
	PostSend    uintptr `c:"post_send"`
	PostRecv    uintptr `c:"post_recv"`
	_           [5]uintptr
}

type cContext struct {
	Device  uintptr     `c:"device"`
	Ops     cContextOps `c:"ops"`
	CmdFD   int32       `c:"cmd_fd"`
	AsyncFD int32       `c:"async_fd"`
}

type cDeviceAttr struct {
	FirmwareVersion  [64]byte `c:"fw_ver"`
	NodeGUID         uint64   `c:"node_guid"`
	SysImageGUID     uint64   `c:"sys_image_guid"`
	MaxMRSize        uint64   `c:"max_mr_size"`
	PageSizeCap      uint64   `c:"page_size_cap"`
	VendorID         uint32   `c:"vendor_id"`
	VendorPartID     uint32   `c:"vendor_part_id"`
	HWVersion        uint32   `c:"hw_ver"`
	MaxQP            int32    `c:"max_qp"`
	MaxQPWR          int32    `c:"max_qp_wr"`
	DeviceCapFlags   uint32   `c:"device_cap_flags"`
	MaxSGE           int32    `c:"max_sge"`
	MaxSGERead       int32    `c:"max_sge_rd"`
	MaxCQ            int32    `c:"max_cq"`
	MaxCQE           int32    `c:"max_cqe"`
	MaxMR            int32    `c:"max_mr"`
	MaxPD            int32    `c:"max_pd"`
	MaxQPReadAtomic  int32    `c:"max_qp_rd_atom"`
	_                [2]int32
	MaxQPInitReadAtm int32 `c:"max_qp_init_rd_atom"`
	_                [16]int32
	MaxPKeys         uint16 `c:"max_pkeys"`
	LocalCAAckDelay  uint8  `c:"local_ca_ack_delay"`
	PhysPortCount    uint8  `c:"phys_port_cnt"`
}

type cPortAttr struct {
	State       uint32 `c:"state"`
	MaxMTU      uint32 `c:"max_mtu"`
	ActiveMTU   uint32 `c:"active_mtu"`
	GIDTableLen int32  `c:"gid_tbl_len"`
	_           [4]uint32
	PKeyLen     uint16 `c:"pkey_tbl_len"`
	LID         uint16 `c:"lid"`
	SMLID       uint16 `c:"sm_lid"`
	LMC         uint8  `c:"lmc"`
	_           [4]byte
	ActiveWidth uint8 `c:"active_width"`
	ActiveSpeed uint8 `c:"active_speed"`
	PhysState   uint8 `c:"phys_state"`
	LinkLayer   uint8 `c:"link_layer"`
	Flags       uint8 `c:"flags"`
	_           [4]byte
}

type cGIDEntry struct {
	GID      [16]byte `c:"gid"`
	Index    uint32   `c:"gid_index"`
	Port     uint32   `c:"port_num"`
	Type     uint32   `c:"gid_type"`
	NDevIndx uint32   `c:"ndev_ifindex"`
}

type cMR struct {
	_      [36]byte
	LKey   uint32 `c:"lkey"`
	RKey   uint32 `c:"rkey"`
	Unused uint32
}

type cCompChannel struct {
	Context uintptr `c:"context"`
	FD      int32   `c:"fd"`
	RefCnt  int32   `c:"refcnt"`
}

type cQPCap struct {
	MaxSendWR     uint32 `c:"max_send_wr"`
	MaxRecvWR     uint32 `c:"max_recv_wr"`
	MaxSendSGE    uint32 `c:"max_send_sge"`
	MaxRecvSGE    uint32 `c:"max_recv_sge"`
	MaxInlineData uint32 `c:"max_inline_data"`
}

type cQPInitAttr struct {
	QPContext uintptr `c:"qp_context"`
	SendCQ    uintptr `c:"send_cq"`
	RecvCQ    uintptr `c:"recv_cq"`
	SRQ       uintptr `c:"srq"`
	Cap       cQPCap  `c:"cap"`
	QPType    uint32  `c:"qp_type"`
	SigAll    int32   `c:"sq_sig_all"`
	_         uint32
}

type cGlobalRoute struct {
	DGID         [16]byte `c:"dgid"`
	FlowLabel    uint32   `c:"flow_label"`
	SGIDIndex    uint8    `c:"sgid_index"`
	HopLimit     uint8    `c:"hop_limit"`
	TrafficClass uint8    `c:"traffic_class"`
	_            byte
}

type cAHAttr struct {
	GRH         cGlobalRoute `c:"grh"`
	DLID        uint16       `c:"dlid"`
	SL          uint8        `c:"sl"`
	SrcPathBits uint8        `c:"src_path_bits"`
	StaticRate  uint8        `c:"static_rate"`
	IsGlobal    uint8        `c:"is_global"`
	Port        uint8        `c:"port_num"`
	_           byte
}

type cQPAttr struct {
	State         uint32  `c:"qp_state"`
	CurState      uint32  `c:"cur_qp_state"`
	PathMTU       uint32  `c:"path_mtu"`
	MigState      uint32  `c:"path_mig_state"`
	QKey          uint32  `c:"qkey"`
	RecvPSN       uint32  `c:"rq_psn"`
	SendPSN       uint32  `c:"sq_psn"`
	DestQP        uint32  `c:"dest_qp_num"`
	AccessFlags   uint32  `c:"qp_access_flags"`
	Cap           cQPCap  `c:"cap"`
	AH            cAHAttr `c:"ah_attr"`
	AltAH         cAHAttr `c:"alt_ah_attr"`
	PKeyIndex     uint16  `c:"pkey_index"`
	AltPKeyIndex  uint16  `c:"alt_pkey_index"`
	EnSQDAsync    uint8   `c:"en_sqd_async_notify"`
	SQDraining    uint8   `c:"sq_draining"`
	MaxReadAtomic uint8   `c:"max_rd_atomic"`
	MaxDestReadAt uint8   `c:"max_dest_rd_atomic"`
	MinRNRTimer   uint8   `c:"min_rnr_timer"`
	Port          uint8   `c:"port_num"`
	Timeout       uint8   `c:"timeout"`
	RetryCount    uint8   `c:"retry_cnt"`
	RNRRetry      uint8   `c:"rnr_retry"`
	AltPort       uint8   `c:"alt_port_num"`
	AltTimeout    uint8   `c:"alt_timeout"`
	_             byte
	RateLimit     uint32 `c:"rate_limit"`
	_             uint32 // in C a GID is aligned to 8 bytes
}

type cQP struct {
	_     [52]byte
	QPNum uint32 `c:"qp_num"`
}

type cSGE struct {
	Addr   uint64 `c:"addr"`
	Length uint32 `c:"length"`
	LKey   uint32 `c:"lkey"`
}

// cSendWR holds addresses of Go memory as numbers: the memory must be kept alive by other means.
type cSendWR struct {
	ID         uint64  `c:"wr_id"`
	Next       uintptr `c:"next"`
	SGList     uintptr `c:"sg_list"`
	NumSGE     int32   `c:"num_sge"`
	Opcode     uint32  `c:"opcode"`
	SendFlags  uint32  `c:"send_flags"`
	Imm        uint32  `c:"imm_data"`
	RemoteAddr uint64  `c:"wr.rdma.remote_addr"`
	RKey       uint32  `c:"wr.rdma.rkey"`
	_          [76]byte
}

type cWC struct {
	ID        uint64 `c:"wr_id"`
	Status    uint32 `c:"status"`
	Opcode    uint32 `c:"opcode"`
	VendorErr uint32 `c:"vendor_err"`
	ByteLen   uint32 `c:"byte_len"`
	Imm       uint32 `c:"imm_data"`
	QPNum     uint32 `c:"qp_num"`
	SrcQP     uint32 `c:"src_qp"`
	Flags     uint32 `c:"wc_flags"`
	_         [8]byte
}

type cAsyncEvent struct {
	Element uintptr `c:"element"` // *ibv_qp, *ibv_cq, ... or an int, by type
	Type    uint32  `c:"event_type"`
	_       uint32
}

// Constants of verbs.h.
const (
	qptRC = 2 // IBV_QPT_RC

	qpsInit = 1 // IBV_QPS_INIT
	qpsRTR  = 2 // IBV_QPS_RTR
	qpsRTS  = 3 // IBV_QPS_RTS
	qpsErr  = 6 // IBV_QPS_ERR

	qpState        = 1 << 0  // IBV_QP_STATE
	qpAccessFlags  = 1 << 3  // IBV_QP_ACCESS_FLAGS
	qpPKeyIndex    = 1 << 4  // IBV_QP_PKEY_INDEX
	qpPort         = 1 << 5  // IBV_QP_PORT
	qpAV           = 1 << 7  // IBV_QP_AV
	qpPathMTU      = 1 << 8  // IBV_QP_PATH_MTU
	qpTimeout      = 1 << 9  // IBV_QP_TIMEOUT
	qpRetryCount   = 1 << 10 // IBV_QP_RETRY_CNT
	qpRNRRetry     = 1 << 11 // IBV_QP_RNR_RETRY
	qpRecvPSN      = 1 << 12 // IBV_QP_RQ_PSN
	qpMaxReadOut   = 1 << 13 // IBV_QP_MAX_QP_RD_ATOMIC
	qpMinRNRTimer  = 1 << 15 // IBV_QP_MIN_RNR_TIMER
	qpSendPSN      = 1 << 16 // IBV_QP_SQ_PSN
	qpMaxDestReads = 1 << 17 // IBV_QP_MAX_DEST_RD_ATOMIC
	qpDestQP       = 1 << 20 // IBV_QP_DEST_QPN

	wrWrite = 0 // IBV_WR_RDMA_WRITE
	wrRead  = 4 // IBV_WR_RDMA_READ

	sendSignaled = 1 << 1 // IBV_SEND_SIGNALED
)

// at is the structure of C at an address. The memory is not Go's, so the garbage collector neither frees nor moves it.
func at[T any](p uintptr) *T { return *(**T)(unsafe.Pointer(&p)) }

// address is that of memory outside of Go, or on Go's heap and reachable until it is used no more. Local variables do not
// qualify: they are on a stack, which moves. Arguments of library.call are converted in the call itself, which the
// compiler takes as a sign that they must be on the heap until the call ends.
func address[T any](v *T) uintptr { return uintptr(unsafe.Pointer(v)) }

func size[T any]() uintptr {
	var v T
	return unsafe.Sizeof(v)
}
