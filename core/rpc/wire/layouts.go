package wire

import (
	sp "github.com/mooncake-agent/mooncake/core/rpc/structpack"
)

// Layouts of the structs inside arguments and results. The number in a name is the release (0.3.N)
// from which the layout holds; a layout without number never changed.

var (
	str      = sp.String[string]()
	strs     = sp.Vector(str)
	u64      = sp.Uint64[uint64]()
	u64s     = sp.Vector(u64)
	i64      = sp.Int64[int64]()
	boolean  = sp.Bool[bool]()
	optU64   = sp.Optional(u64)
	replType = sp.Int32[ReplicaType]()

	// uuid is pair<u64, u64>, which C++ copies as a block.
	uuid = sp.Custom(sp.Trivial(8, 8, sp.F(u64, func(u *UUID) *uint64 { return &u[0] }),
		sp.F(u64, func(u *UUID) *uint64 { return &u[1] })).Literal(), 16,
		func(e *sp.Encoder, u *UUID) { e.U64(u[0]); e.U64(u[1]) },
		func(d *sp.Decoder, u *UUID) { u[0], u[1] = d.U64(), d.U64() })
	uuids = sp.Vector(uuid)
)

// result is expected<T, ErrorCode>.
func result[T any](t sp.Type[T]) sp.Type[Result[T]] { return sp.Expect[ErrorCode](t) }

// batch is the answer of a batch function: a bare list of results.
func batch[T any](t sp.Type[T]) sp.Type[[]Result[T]] { return sp.Vector(result(t)) }

var (
	void  = result(sp.Monostate())
	voids = batch(sp.Monostate())
)

// Segments.

type segmentField = sp.Field[Segment]

func segment(more ...segmentField) sp.Type[Segment] {
	return sp.Struct(append([]segmentField{
		sp.F(uuid, func(s *Segment) *UUID { return &s.ID }),
		sp.F(str, func(s *Segment) *string { return &s.Name }),
		sp.F(u64, func(s *Segment) *uint64 { return &s.Base }),
		sp.F(u64, func(s *Segment) *uint64 { return &s.Size }),
		sp.F(str, func(s *Segment) *string { return &s.TEEndpoint }),
	}, more...)...)
}

var (
	segProtocol   = sp.F(str, func(s *Segment) *string { return &s.Protocol })
	segHost       = sp.F(str, func(s *Segment) *string { return &s.HostID })
	segNoProtocol = sp.Fill(func(_ *sp.Decoder, s *Segment) { s.Protocol = "" })
	segNoHost     = sp.Fill(func(_ *sp.Decoder, s *Segment) { s.HostID = "" })

	segment7   = segment(segNoProtocol, segNoHost)
	segment9   = segment(segProtocol, segNoHost)
	segment12  = segment(segProtocol, segHost)
	segmentNoF = segment7

	segmentOwner = sp.Struct(
		sp.F(uuid, func(o *SegmentOwner) *UUID { return &o.Segment }),
		sp.F(uuid, func(o *SegmentOwner) *UUID { return &o.Client }))
)

// ReplicateConfig.

var (
	cfgReplicas  = sp.F(u64, func(c *ReplicateConfig) *uint64 { return &c.Replicas })
	cfgNoF       = sp.F(u64, func(c *ReplicateConfig) *uint64 { return &c.NoFReplicas })
	cfgDFS       = sp.F(u64, func(c *ReplicateConfig) *uint64 { return &c.DFSReplicas })
	cfgSoftPin   = sp.F(sp.Uint8[SoftPinAction](), func(c *ReplicateConfig) *SoftPinAction { return &c.SoftPin })
	cfgSoftFlag  = sp.F(softPinFlag, func(c *ReplicateConfig) *SoftPinAction { return &c.SoftPin })
	cfgSoftTTL   = sp.F(optU64, func(c *ReplicateConfig) *Opt[uint64] { return &c.SoftPinTTLMS })
	cfgHardPin   = sp.F(boolean, func(c *ReplicateConfig) *bool { return &c.HardPin })
	cfgSegments  = sp.F(strs, func(c *ReplicateConfig) *[]string { return &c.PreferredSegments })
	cfgSegment   = sp.F(str, func(c *ReplicateConfig) *string { return &c.PreferredSegment })
	cfgNoFNames  = sp.F(strs, func(c *ReplicateConfig) *[]string { return &c.PreferredNoFSegments })
	cfgSameNode  = sp.F(boolean, func(c *ReplicateConfig) *bool { return &c.PreferSameNode })
	cfgDataType  = sp.F(sp.Uint8[uint8](), func(c *ReplicateConfig) *uint8 { return &c.DataType })
	cfgHost      = sp.F(str, func(c *ReplicateConfig) *string { return &c.HostID })
	cfgGroups    = sp.F(sp.Optional(strs), func(c *ReplicateConfig) *Opt[[]string] { return &c.GroupIDs })
	cfgResetRest = sp.Fill(func(_ *sp.Decoder, c *ReplicateConfig) {
		*c = ReplicateConfig{PreferredSegments: c.PreferredSegments[:0], PreferredNoFSegments: c.PreferredNoFSegments[:0]}
	})

	// softPinFlag is the bool of versions before 0.3.13.
	softPinFlag = sp.Custom(boolean.Literal(), 1,
		func(e *sp.Encoder, a *SoftPinAction) { e.Bool(*a == SoftPinEnable) },
		func(d *sp.Decoder, a *SoftPinAction) {
			if *a = SoftPinPreserve; d.Bool() {
				*a = SoftPinEnable
			}
		})

	config7  = sp.Struct(cfgResetRest, cfgReplicas, cfgSoftFlag, cfgSegment, cfgSameNode)
	config8  = sp.Struct(cfgResetRest, cfgReplicas, cfgSoftFlag, cfgSegments, cfgSegment, cfgSameNode)
	config10 = sp.Struct(cfgResetRest, cfgReplicas, cfgSoftFlag, cfgHardPin, cfgSegments, cfgSegment, cfgSameNode)
	config11 = sp.Struct(cfgResetRest, cfgReplicas, cfgNoF, cfgSoftFlag, cfgHardPin, cfgSegments, cfgSegment, cfgNoFNames, cfgSameNode, cfgDataType)
	config12 = sp.Struct(cfgResetRest, cfgReplicas, cfgNoF, cfgSoftFlag, cfgHardPin, cfgSegments, cfgSegment, cfgNoFNames, cfgSameNode, cfgDataType, cfgHost, cfgGroups)
	config13 = sp.Struct(cfgResetRest, cfgReplicas, cfgNoF, cfgDFS, cfgSoftPin, cfgSoftTTL, cfgHardPin, cfgSegments, cfgSegment, cfgNoFNames, cfgSameNode, cfgDataType, cfgHost, cfgGroups)
)

// Replicas.

var (
	repReset    = sp.Fill(func(_ *sp.Decoder, r *Replica) { *r = Replica{Slices: r.Slices[:0]} })
	repID       = sp.F(u64, func(r *Replica) *uint64 { return &r.ID })
	repStatus   = sp.F(sp.Int32[ReplicaStatus](), func(r *Replica) *ReplicaStatus { return &r.Status })
	repSize     = sp.F(u64, func(r *Replica) *uint64 { return &r.Size })
	repAddress  = sp.F(u64, func(r *Replica) *uint64 { return &r.Address })
	repProtocol = sp.F(str, func(r *Replica) *string { return &r.Protocol })
	repEndpoint = sp.F(str, func(r *Replica) *string { return &r.Endpoint })
	repPath     = sp.F(str, func(r *Replica) *string { return &r.Path })
	repOffset   = sp.F(u64, func(r *Replica) *uint64 { return &r.Offset })
	repAligned  = sp.F(u64, func(r *Replica) *uint64 { return &r.AlignedSize })
	repShard    = sp.F(sp.Int32[int32](), func(r *Replica) *int32 { return &r.Shard })
	repClient   = sp.F(uuid, func(r *Replica) *UUID { return &r.Client })

	// The alternatives. A memory descriptor is a struct around its buffer descriptor; in 0.3.7 around
	// a list of them, one for each slice.
	memory7   = sp.Struct(sp.F(parts7, func(r *Replica) *Replica { return r }))
	memory8   = sp.Struct(sp.F(sp.Struct(repSize, repAddress, repEndpoint), func(r *Replica) *Replica { return r }))
	memory9   = sp.Struct(sp.F(sp.Struct(repSize, repAddress, repProtocol, repEndpoint), func(r *Replica) *Replica { return r }))
	nof       = memory9
	disk      = sp.Struct(repPath, repSize)
	localDisk = sp.Struct(repClient, repSize, repEndpoint)
	dfs       = sp.Struct(repPath, repOffset, repSize, repAligned, repShard)

	replica7  = sp.Struct(repReset, where(kind(KindMemory, memory7), kind(KindDisk, disk)), repStatus)
	replica8  = sp.Struct(repReset, where(kind(KindMemory, memory8), kind(KindDisk, disk), kind(KindLocalDisk, localDisk)), repStatus)
	replica9  = sp.Struct(repReset, repID, where(kind(KindMemory, memory9), kind(KindDisk, disk), kind(KindLocalDisk, localDisk)), repStatus)
	replica11 = sp.Struct(repReset, repID, where(kind(KindMemory, memory9), kind(KindNoF, nof), kind(KindDisk, disk), kind(KindLocalDisk, localDisk)), repStatus)
	replica13 = sp.Struct(repReset, repID, where(kind(KindMemory, memory9), kind(KindNoF, nof), kind(KindDisk, disk), kind(KindLocalDisk, localDisk), kind(KindDFS, dfs)), repStatus)

	replicas7  = replicas(V0_3_7, replica7)
	replicas8  = replicas(V0_3_8, replica8)
	replicas9  = replicas(V0_3_9, replica9)
	replicas11 = replicas(V0_3_11, replica11)
	replicas13 = replicas(V0_3_13, replica13)
)

func kind(k ReplicaKind, t sp.Type[Replica]) sp.Alternative[Replica, ReplicaKind] {
	return sp.Alternative[Replica, ReplicaKind]{Kind: k, Type: t}
}

// where is the variant that tells a replica's place.
func where(alternatives ...sp.Alternative[Replica, ReplicaKind]) sp.Field[Replica] {
	return sp.F(sp.Variant(func(r *Replica) *ReplicaKind { return &r.Kind }, alternatives...),
		func(r *Replica) *Replica { return r })
}

// replicas is a list from which the kinds that version v does not know are left out.
func replicas(v Version, t sp.Type[Replica]) sp.Type[[]Replica] {
	return sp.FilteredVector(t, func(r *Replica) bool { return r.Kind.Known(v) })
}

// parts7 is the list of buffers of a 0.3.7 memory replica. We keep one contiguous range and spell
// its parts one behind the other.
var parts7 = func() sp.Type[Replica] {
	part := sp.Vector(sp.Struct(repSize, repAddress, repEndpoint))
	return sp.Custom(part.Literal(), 1,
		func(e *sp.Encoder, r *Replica) {
			if len(r.Slices) == 0 {
				e.Len(1)
				writePart7(e, r.Size, r.Address, r.Endpoint)
				return
			}
			e.Len(len(r.Slices))
			address := r.Address
			for _, n := range r.Slices {
				writePart7(e, n, address, r.Endpoint)
				address += n
			}
		},
		func(d *sp.Decoder, r *Replica) {
			const partBytes = 8 + 8 + 1
			n := d.Len(partBytes)
			if !d.Claim(8 * n) {
				return
			}
			for i := range n {
				size, address, endpoint := d.U64(), d.U64(), d.String()
				if i == 0 {
					r.Address, r.Endpoint = address, endpoint
				} else if address != r.Address+r.Size || endpoint != r.Endpoint {
					d.Fail("parts of a replica are not contiguous")
				}
				if d.Failed() {
					return
				}
				r.Size += size
				if n > 1 {
					r.Slices = append(r.Slices, size)
				}
			}
		})
}()

func writePart7(e *sp.Encoder, size, address uint64, endpoint string) {
	e.U64(size)
	e.U64(address)
	e.String(endpoint)
}

// GetReplicaList answers.

var (
	listChecksum   = sp.F(optU64, func(l *ReplicaList) *Opt[uint64] { return &l.Checksum })
	listNoChecksum = sp.Fill(func(_ *sp.Decoder, l *ReplicaList) { l.Checksum = Opt[uint64]{} })

	list7  = replicaList(replicas7, listNoChecksum)
	list8  = replicaList(replicas8, listNoChecksum)
	list9  = replicaList(replicas9, listNoChecksum)
	list11 = replicaList(replicas11, listNoChecksum)
	list13 = replicaList(replicas13, listChecksum)
)

func replicaList(rs sp.Type[[]Replica], checksum sp.Field[ReplicaList]) sp.Type[ReplicaList] {
	return sp.Struct(sp.F(rs, func(l *ReplicaList) *[]Replica { return &l.Replicas }),
		sp.F(u64, func(l *ReplicaList) *uint64 { return &l.LeaseTTLMS }), checksum)
}

// byKey is map<string, T>.
func byKey[T any](t sp.Type[T]) sp.Type[[]Pair[string, T]] { return sp.Map(str, t) }

// Copy, move and promotion answers.

func copyTargets(one sp.Type[Replica], many sp.Type[[]Replica]) sp.Type[Result[CopyTargets]] {
	return result(sp.Struct(sp.F(one, func(c *CopyTargets) *Replica { return &c.Source }),
		sp.F(many, func(c *CopyTargets) *[]Replica { return &c.Targets })))
}

func moveTarget(one sp.Type[Replica]) sp.Type[Result[MoveTarget]] {
	return result(sp.Struct(sp.F(one, func(m *MoveTarget) *Replica { return &m.Source }),
		sp.F(sp.Optional(one), func(m *MoveTarget) *Opt[Replica] { return &m.Target })))
}

func promoted(one sp.Type[Replica]) sp.Type[Result[Replica]] {
	return result(sp.Struct(sp.F(one, func(r *Replica) *Replica { return r })))
}

// Objects on disk.

var (
	metaKey = sp.F(str, func(m *ObjectMeta) *string { return &m.Key })
	metaSum = sp.F(optU64, func(m *ObjectMeta) *Opt[uint64] { return &m.Checksum })
	// Versions before 0.3.13 send the key alone.
	meta7  = sp.Inline(metaKey, sp.Fill(func(_ *sp.Decoder, m *ObjectMeta) { m.Checksum = Opt[uint64]{} }))
	meta13 = sp.Struct(metaKey, metaSum)

	taskTenant = sp.F(str, func(t *OffloadTask) *string { return &t.Tenant })
	taskKey    = sp.F(str, func(t *OffloadTask) *string { return &t.Key })
	taskSize   = sp.F(i64, func(t *OffloadTask) *int64 { return &t.Size })
	taskReset  = sp.Fill(func(_ *sp.Decoder, t *OffloadTask) { *t = OffloadTask{Tenant: DefaultTenant} })
	// Until 0.3.11 a mailbox is map<key, size> and a notification names keys only.
	offloads8   = sp.MapOf(taskReset, taskKey, taskSize)
	notified8   = sp.Inline(taskReset, taskKey)
	offload12   = sp.Struct(taskTenant, taskKey, taskSize)
	offloads12  = sp.Vector(offload12)
	storageMeta = sp.Struct(
		sp.F(i64, func(m *StorageMeta) *int64 { return &m.Bucket }),
		sp.F(i64, func(m *StorageMeta) *int64 { return &m.Offset }),
		sp.F(i64, func(m *StorageMeta) *int64 { return &m.KeySize }),
		sp.F(i64, func(m *StorageMeta) *int64 { return &m.DataSize }),
		sp.F(str, func(m *StorageMeta) *string { return &m.TEEndpoint }))
)

// Tasks, pings and the rest.

var (
	taskType   = sp.Int32[TaskType]()
	taskStatus = sp.Int32[TaskStatus]()

	taskState = sp.Struct(
		sp.F(uuid, func(t *TaskState) *UUID { return &t.ID }),
		sp.F(taskType, func(t *TaskState) *TaskType { return &t.Type }),
		sp.F(taskStatus, func(t *TaskState) *TaskStatus { return &t.Status }),
		sp.F(i64, func(t *TaskState) *int64 { return &t.CreatedMS }),
		sp.F(i64, func(t *TaskState) *int64 { return &t.UpdatedMS }),
		sp.F(uuid, func(t *TaskState) *UUID { return &t.Client }),
		sp.F(str, func(t *TaskState) *string { return &t.Message }))

	asgID        = sp.F(uuid, func(t *TaskAssignment) *UUID { return &t.ID })
	asgType      = sp.F(taskType, func(t *TaskAssignment) *TaskType { return &t.Type })
	asgPayload   = sp.F(str, func(t *TaskAssignment) *string { return &t.Payload })
	asgCreated   = sp.F(i64, func(t *TaskAssignment) *int64 { return &t.CreatedMS })
	asgRetries   = sp.F(sp.Uint32[uint32](), func(t *TaskAssignment) *uint32 { return &t.MaxRetries })
	asgNoRetries = sp.Fill(func(_ *sp.Decoder, t *TaskAssignment) { t.MaxRetries = 0 })
	assignment8  = sp.Struct(asgID, asgType, asgPayload, asgCreated, asgNoRetries)
	assignment10 = sp.Struct(asgID, asgType, asgPayload, asgCreated, asgRetries)

	pingReply = sp.Struct(
		sp.F(i64, func(p *PingReply) *int64 { return &p.ViewVersion }),
		sp.F(sp.Int32[ClientStatus](), func(p *PingReply) *ClientStatus { return &p.Status }))

	storageConfig = sp.Struct(
		sp.F(str, func(c *StorageConfig) *string { return &c.FSDir }),
		sp.F(boolean, func(c *StorageConfig) *bool { return &c.EnableDiskEviction }),
		sp.F(u64, func(c *StorageConfig) *uint64 { return &c.QuotaBytes }))

	// ready7 says only that the master is ready; later versions say which protocol it speaks.
	ready7 = result(sp.Custom(sp.Monostate().Literal(), 0,
		func(*sp.Encoder, *string) {}, func(_ *sp.Decoder, s *string) { *s = "" }))
	ready8 = result(str)
)
