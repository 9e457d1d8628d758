package wire

import (
	"math"

	sp "github.com/mooncake-agent/mooncake/core/rpc/structpack"
)

// none is the request layout of a function without arguments; fill sets the request.
func none[Req any](fill func(*sp.Decoder, *Req)) arguments[Req] { return arguments[Req]{fill: fill} }

// args is the request layout of a function with arguments: one argument travels as itself, several
// as a tuple.
func args[Req any](fields ...sp.Field[Req]) arguments[Req] {
	n := 0
	for _, f := range fields {
		if f.OnWire() {
			n++
		}
	}
	if n == 1 {
		return arguments[Req]{msg: sp.NewMessage(sp.Inline(fields...)), single: true}
	}
	return arguments[Req]{msg: sp.NewMessage(sp.Struct(fields...))}
}

// fill is an argument that the version does not carry.
func fill[Req any](f func(*Req)) sp.Field[Req] {
	return sp.Fill(func(_ *sp.Decoder, r *Req) { f(r) })
}

// Life cycle of a client.

var noArgs = none(func(*sp.Decoder, *NoArgs) {})

var (
	// ServiceReady greets. From 0.3.8 the answer is [ServiceVersion]; in 0.3.7 only success.
	ServiceReady = define("ServiceReady",
		at(V0_3_7, noArgs, ready7),
		at(V0_3_8, noArgs, ready8))

	GetStorageConfig = define("GetStorageConfig", at(V0_3_8, noArgs, result(storageConfig)))
	GetFsdir         = define("GetFsdir", at(V0_3_7, noArgs, result(str)))

	clientID = args(sp.F(uuid, func(r *ClientRequest) *UUID { return &r.Client }))

	Ping = define("Ping", at(V0_3_7, clientID, result(pingReply)))
)

// ServiceVersion is what ServiceReady answers; clients accept nothing else.
const ServiceVersion = "2.0.0"

// Segments.

var (
	mountClient = sp.F(uuid, func(r *MountSegmentRequest) *UUID { return &r.Client })

	MountSegment = define("MountSegment",
		at(V0_3_7, args(mounted(segment7), mountClient), void),
		at(V0_3_9, args(mounted(segment9), mountClient), void),
		at(V0_3_12, args(mounted(segment12), mountClient), void))
	MountNoFSegment = define("MountNoFSegment", at(V0_3_11, args(mounted(segmentNoF), mountClient), void))

	remountClient = sp.F(uuid, func(r *ReMountSegmentRequest) *UUID { return &r.Client })

	ReMountSegment = define("ReMountSegment",
		at(V0_3_7, args(remounted(segment7), remountClient), void),
		at(V0_3_9, args(remounted(segment9), remountClient), void),
		at(V0_3_12, args(remounted(segment12), remountClient), void))
	ReMountNoFSegment = define("ReMountNoFSegment", at(V0_3_11, args(remounted(segmentNoF), remountClient), void))

	unmountSegment = sp.F(uuid, func(r *UnmountSegmentRequest) *UUID { return &r.Segment })
	unmountClient  = sp.F(uuid, func(r *UnmountSegmentRequest) *UUID { return &r.Client })
	unmountGrace   = sp.F(u64, func(r *UnmountSegmentRequest) *uint64 { return &r.GraceMS })
	unmountAtOnce  = fill(func(r *UnmountSegmentRequest) { r.GraceMS = 0 })

	UnmountSegment         = define("UnmountSegment", at(V0_3_7, args(unmountSegment, unmountClient, unmountAtOnce), void))
	GracefulUnmountSegment = define("GracefulUnmountSegment", at(V0_3_11, args(unmountSegment, unmountClient, unmountGrace), void))
	UnmountNoFSegment      = define("UnmountNoFSegment", at(V0_3_11, args(unmountSegment, unmountClient, unmountAtOnce), void))

	byName = args(sp.F(str, func(r *NameRequest) *string { return &r.Name }))
	byID   = args(sp.F(uuid, func(r *IDRequest) *UUID { return &r.ID }))

	QuerySegmentStatus     = define("QuerySegmentStatus", at(V0_3_11, byName, result(sp.Int32[SegmentStatus]())))
	QuerySegmentStatusByID = define("QuerySegmentStatusById", at(V0_3_11, byID, result(sp.Int32[SegmentStatus]())))
	GetAllNoFSegments      = define("GetAllNoFSegments", at(V0_3_11, noArgs, result(sp.Vector(segmentNoF))))
	GetNoFSegmentsByName   = define("GetNoFSegmentsByName", at(V0_3_11, byName, result(sp.Vector(segmentOwner))))

	BatchQueryIP = define("BatchQueryIp",
		at(V0_3_8, args(sp.F(uuids, func(r *BatchQueryIPRequest) *[]UUID { return &r.Clients })), result(sp.Map(uuid, strs))))
)

func mounted(t sp.Type[Segment]) sp.Field[MountSegmentRequest] {
	return sp.F(t, func(r *MountSegmentRequest) *Segment { return &r.Segment })
}

func remounted(t sp.Type[Segment]) sp.Field[ReMountSegmentRequest] {
	return sp.F(sp.Vector(t), func(r *ReMountSegmentRequest) *[]Segment { return &r.Segments })
}

// Reading.

var (
	keyOnly     = sp.F(str, func(r *KeyRequest) *string { return &r.Key })
	keyTenant   = sp.F(str, func(r *KeyRequest) *string { return &r.Tenant })
	keyNoTenant = fill(func(r *KeyRequest) { r.Tenant = DefaultTenant })
	key7        = args(keyOnly, keyNoTenant)
	key12       = args(keyOnly, keyTenant)

	keysOnly     = sp.F(strs, func(r *KeysRequest) *[]string { return &r.Keys })
	keysTenant   = sp.F(str, func(r *KeysRequest) *string { return &r.Tenant })
	keysNoTenant = fill(func(r *KeysRequest) { r.Tenant = DefaultTenant })
	keys7        = args(keysOnly, keysNoTenant)
	keys12       = args(keysOnly, keysTenant)

	ExistKey = define("ExistKey",
		at(V0_3_7, key7, result(boolean)),
		at(V0_3_12, key12, result(boolean)))
	BatchExistKey = define("BatchExistKey",
		at(V0_3_7, keys7, batch(boolean)),
		at(V0_3_12, keys12, batch(boolean)))

	GetReplicaList = define("GetReplicaList",
		at(V0_3_7, key7, result(list7)),
		at(V0_3_8, key7, result(list8)),
		at(V0_3_9, key7, result(list9)),
		at(V0_3_11, key7, result(list11)),
		at(V0_3_12, key12, result(list11)),
		at(V0_3_13, key12, result(list13)))
	BatchGetReplicaList = define("BatchGetReplicaList",
		at(V0_3_7, keys7, batch(list7)),
		at(V0_3_8, keys7, batch(list8)),
		at(V0_3_9, keys7, batch(list9)),
		at(V0_3_11, keys7, batch(list11)),
		at(V0_3_12, keys12, batch(list11)),
		at(V0_3_13, keys12, batch(list13)))
	GetReplicaListByRegex = define("GetReplicaListByRegex",
		at(V0_3_7, key7, result(byKey(replicas7))),
		at(V0_3_8, key7, result(byKey(replicas8))),
		at(V0_3_9, key7, result(byKey(replicas9))),
		at(V0_3_11, key7, result(byKey(replicas11))),
		at(V0_3_12, key12, result(byKey(replicas11))),
		at(V0_3_13, key12, result(byKey(replicas13))))
)

// Writing. Upsert functions share the layouts of their put counterparts.

var (
	putClient   = sp.F(uuid, func(r *PutStartRequest) *UUID { return &r.Client })
	putNoClient = fill(func(r *PutStartRequest) { r.Client = UUID{} })
	putKey      = sp.F(str, func(r *PutStartRequest) *string { return &r.Key })
	putLength   = sp.F(u64, func(r *PutStartRequest) *uint64 { return &r.Length })
	putSlices   = sp.F(slices7, func(r *PutStartRequest) *PutStartRequest { return r })
	putNoSlices = fill(func(r *PutStartRequest) { r.Slices = r.Slices[:0] })
	putTenant   = sp.F(str, func(r *PutStartRequest) *string { return &r.Tenant })
	putNoTenant = fill(func(r *PutStartRequest) { r.Tenant = DefaultTenant })

	put7  = args(putNoClient, putKey, putSlices, putConfig(config7), putNoTenant)
	put8  = args(putClient, putKey, putLength, putNoSlices, putConfig(config8), putNoTenant)
	put10 = args(putClient, putKey, putLength, putNoSlices, putConfig(config10), putNoTenant)
	put11 = args(putClient, putKey, putLength, putNoSlices, putConfig(config11), putNoTenant)
	put12 = args(putClient, putKey, putLength, putNoSlices, putConfig(config12), putTenant)
	put13 = args(putClient, putKey, putLength, putNoSlices, putConfig(config13), putTenant)

	PutStart = define("PutStart",
		at(V0_3_7, put7, result(replicas7)),
		at(V0_3_8, put8, result(replicas8)),
		at(V0_3_9, put8, result(replicas9)),
		at(V0_3_10, put10, result(replicas9)),
		at(V0_3_11, put11, result(replicas11)),
		at(V0_3_12, put12, result(replicas11)),
		at(V0_3_13, put13, result(replicas13)))
	UpsertStart = define("UpsertStart",
		at(V0_3_10, put10, result(replicas9)),
		at(V0_3_11, put11, result(replicas11)),
		at(V0_3_12, put12, result(replicas11)),
		at(V0_3_13, put13, result(replicas13)))

	batchPutClient   = sp.F(uuid, func(r *BatchPutStartRequest) *UUID { return &r.Client })
	batchPutNoClient = fill(func(r *BatchPutStartRequest) { r.Client = UUID{} })
	batchPutKeys     = sp.F(strs, func(r *BatchPutStartRequest) *[]string { return &r.Keys })
	batchPutLengths  = sp.F(u64s, func(r *BatchPutStartRequest) *[]uint64 { return &r.Lengths })
	batchPutSlices   = sp.F(batchSlices7, func(r *BatchPutStartRequest) *BatchPutStartRequest { return r })
	batchPutNoSlices = fill(func(r *BatchPutStartRequest) { r.Slices = r.Slices[:0] })
	batchPutTenant   = sp.F(str, func(r *BatchPutStartRequest) *string { return &r.Tenant })
	batchPutNoTenant = fill(func(r *BatchPutStartRequest) { r.Tenant = DefaultTenant })

	batchPut7  = args(batchPutNoClient, batchPutKeys, batchPutSlices, batchPutConfig(config7), batchPutNoTenant)
	batchPut8  = args(batchPutClient, batchPutKeys, batchPutLengths, batchPutNoSlices, batchPutConfig(config8), batchPutNoTenant)
	batchPut10 = args(batchPutClient, batchPutKeys, batchPutLengths, batchPutNoSlices, batchPutConfig(config10), batchPutNoTenant)
	batchPut11 = args(batchPutClient, batchPutKeys, batchPutLengths, batchPutNoSlices, batchPutConfig(config11), batchPutNoTenant)
	batchPut12 = args(batchPutClient, batchPutKeys, batchPutLengths, batchPutNoSlices, batchPutConfig(config12), batchPutTenant)
	batchPut13 = args(batchPutClient, batchPutKeys, batchPutLengths, batchPutNoSlices, batchPutConfig(config13), batchPutTenant)

	BatchPutStart = define("BatchPutStart",
		at(V0_3_7, batchPut7, batch(replicas7)),
		at(V0_3_8, batchPut8, batch(replicas8)),
		at(V0_3_9, batchPut8, batch(replicas9)),
		at(V0_3_10, batchPut10, batch(replicas9)),
		at(V0_3_11, batchPut11, batch(replicas11)),
		at(V0_3_12, batchPut12, batch(replicas11)),
		at(V0_3_13, batchPut13, batch(replicas13)))
	BatchUpsertStart = define("BatchUpsertStart",
		at(V0_3_10, batchPut10, batch(replicas9)),
		at(V0_3_11, batchPut11, batch(replicas11)),
		at(V0_3_12, batchPut12, batch(replicas11)),
		at(V0_3_13, batchPut13, batch(replicas13)))

	endClient   = sp.F(uuid, func(r *PutEndRequest) *UUID { return &r.Client })
	endNoClient = fill(func(r *PutEndRequest) { r.Client = UUID{} })
	endType     = sp.F(replType, func(r *PutEndRequest) *ReplicaType { return &r.Type })
	endTenant   = sp.F(str, func(r *PutEndRequest) *string { return &r.Tenant })
	endNoTenant = fill(func(r *PutEndRequest) { r.Tenant = DefaultTenant })

	end8  = args(endClient, ended(meta7), endType, endNoTenant)
	end12 = args(endClient, ended(meta7), endType, endTenant)
	end13 = args(endClient, ended(meta13), endType, endTenant)

	PutEnd = define("PutEnd",
		at(V0_3_7, args(endNoClient, ended(meta7), endType, endNoTenant), void),
		at(V0_3_8, end8, void),
		at(V0_3_12, end12, void),
		at(V0_3_13, end13, void))
	UpsertEnd = define("UpsertEnd",
		at(V0_3_10, end8, void),
		at(V0_3_12, end12, void),
		at(V0_3_13, end13, void))

	revokeClient   = sp.F(uuid, func(r *PutRevokeRequest) *UUID { return &r.Client })
	revokeNoClient = fill(func(r *PutRevokeRequest) { r.Client = UUID{} })
	revokeKey      = sp.F(str, func(r *PutRevokeRequest) *string { return &r.Key })
	revokeType     = sp.F(replType, func(r *PutRevokeRequest) *ReplicaType { return &r.Type })
	revokeTenant   = sp.F(str, func(r *PutRevokeRequest) *string { return &r.Tenant })
	revokeNoTenant = fill(func(r *PutRevokeRequest) { r.Tenant = DefaultTenant })

	revoke8  = args(revokeClient, revokeKey, revokeType, revokeNoTenant)
	revoke12 = args(revokeClient, revokeKey, revokeType, revokeTenant)

	PutRevoke = define("PutRevoke",
		at(V0_3_7, args(revokeNoClient, revokeKey, revokeType, revokeNoTenant), void),
		at(V0_3_8, revoke8, void),
		at(V0_3_12, revoke12, void))
	UpsertRevoke = define("UpsertRevoke",
		at(V0_3_10, revoke8, void),
		at(V0_3_12, revoke12, void))

	endsClient   = sp.F(uuid, func(r *BatchPutEndRequest) *UUID { return &r.Client })
	endsNoClient = fill(func(r *BatchPutEndRequest) { r.Client = UUID{} })
	endsType     = sp.F(replType, func(r *BatchPutEndRequest) *ReplicaType { return &r.Type })
	endsMemory   = fill(func(r *BatchPutEndRequest) { r.Type = ReplicaMemory })
	endsAll      = fill(func(r *BatchPutEndRequest) { r.Type = ReplicaAll })
	endsTenant   = sp.F(str, func(r *BatchPutEndRequest) *string { return &r.Tenant })
	endsNoTenant = fill(func(r *BatchPutEndRequest) { r.Tenant = DefaultTenant })

	BatchPutEnd = define("BatchPutEnd",
		at(V0_3_7, args(endsNoClient, allEnded(meta7), endsMemory, endsNoTenant), voids),
		at(V0_3_8, args(endsClient, allEnded(meta7), endsMemory, endsNoTenant), voids),
		at(V0_3_11, args(endsClient, allEnded(meta7), endsType, endsNoTenant), voids),
		at(V0_3_12, args(endsClient, allEnded(meta7), endsType, endsTenant), voids),
		at(V0_3_13, args(endsClient, allEnded(meta13), endsType, endsTenant), voids))
	BatchUpsertEnd = define("BatchUpsertEnd",
		at(V0_3_10, args(endsClient, allEnded(meta7), endsAll, endsNoTenant), voids),
		at(V0_3_12, args(endsClient, allEnded(meta7), endsAll, endsTenant), voids),
		at(V0_3_13, args(endsClient, allEnded(meta13), endsAll, endsTenant), voids))

	revokesClient   = sp.F(uuid, func(r *BatchPutRevokeRequest) *UUID { return &r.Client })
	revokesNoClient = fill(func(r *BatchPutRevokeRequest) { r.Client = UUID{} })
	revokesKeys     = sp.F(strs, func(r *BatchPutRevokeRequest) *[]string { return &r.Keys })
	revokesType     = sp.F(replType, func(r *BatchPutRevokeRequest) *ReplicaType { return &r.Type })
	revokesMemory   = fill(func(r *BatchPutRevokeRequest) { r.Type = ReplicaMemory })
	revokesAll      = fill(func(r *BatchPutRevokeRequest) { r.Type = ReplicaAll })
	revokesTenant   = sp.F(str, func(r *BatchPutRevokeRequest) *string { return &r.Tenant })
	revokesNoTenant = fill(func(r *BatchPutRevokeRequest) { r.Tenant = DefaultTenant })

	BatchPutRevoke = define("BatchPutRevoke",
		at(V0_3_7, args(revokesNoClient, revokesKeys, revokesMemory, revokesNoTenant), voids),
		at(V0_3_8, args(revokesClient, revokesKeys, revokesMemory, revokesNoTenant), voids),
		at(V0_3_11, args(revokesClient, revokesKeys, revokesType, revokesNoTenant), voids),
		at(V0_3_12, args(revokesClient, revokesKeys, revokesType, revokesTenant), voids))
	BatchUpsertRevoke = define("BatchUpsertRevoke",
		at(V0_3_10, args(revokesClient, revokesKeys, revokesAll, revokesNoTenant), voids),
		at(V0_3_12, args(revokesClient, revokesKeys, revokesAll, revokesTenant), voids))
)

func putConfig(t sp.Type[ReplicateConfig]) sp.Field[PutStartRequest] {
	return sp.F(t, func(r *PutStartRequest) *ReplicateConfig { return &r.Config })
}

func batchPutConfig(t sp.Type[ReplicateConfig]) sp.Field[BatchPutStartRequest] {
	return sp.F(t, func(r *BatchPutStartRequest) *ReplicateConfig { return &r.Config })
}

func ended(t sp.Type[ObjectMeta]) sp.Field[PutEndRequest] {
	return sp.F(t, func(r *PutEndRequest) *ObjectMeta { return &r.Meta })
}

func allEnded(t sp.Type[ObjectMeta]) sp.Field[BatchPutEndRequest] {
	return sp.F(sp.Vector(t), func(r *BatchPutEndRequest) *[]ObjectMeta { return &r.Metas })
}

// slices7 is the list of slice lengths that 0.3.7 sends instead of a length.
var slices7 = sp.Custom(u64s.Literal(), 1, writeSlices7, func(d *sp.Decoder, r *PutStartRequest) {
	u64s.Read(d, &r.Slices)
	r.Length = sum(d, r.Slices)
})

func writeSlices7(e *sp.Encoder, r *PutStartRequest) {
	if len(r.Slices) > 0 {
		u64s.Write(e, &r.Slices)
		return
	}
	u64s.Write(e, &[]uint64{r.Length})
}

// batchSlices7 is the same for each key of a batch.
var batchSlices7 = func() sp.Type[BatchPutStartRequest] {
	lists := sp.Vector(u64s)
	return sp.Custom(lists.Literal(), 1,
		func(e *sp.Encoder, r *BatchPutStartRequest) {
			if len(r.Slices) > 0 {
				lists.Write(e, &r.Slices)
				return
			}
			one := make([][]uint64, len(r.Lengths))
			for i := range r.Lengths {
				one[i] = r.Lengths[i : i+1]
			}
			lists.Write(e, &one)
		},
		func(d *sp.Decoder, r *BatchPutStartRequest) {
			lists.Read(d, &r.Slices)
			r.Lengths = r.Lengths[:0]
			if !d.Claim(8 * len(r.Slices)) {
				return
			}
			for _, s := range r.Slices {
				r.Lengths = append(r.Lengths, sum(d, s))
			}
		})
}()

func sum(d *sp.Decoder, ns []uint64) uint64 {
	var total uint64
	for _, n := range ns {
		if n > math.MaxUint64-total {
			d.Fail("slice lengths overflow")
			return 0
		}
		total += n
	}
	return total
}

// Removing.

var (
	removeKey      = sp.F(str, func(r *RemoveRequest) *string { return &r.Key })
	removeForce    = sp.F(boolean, func(r *RemoveRequest) *bool { return &r.Force })
	removeNoForce  = fill(func(r *RemoveRequest) { r.Force = false })
	removeTenant   = sp.F(str, func(r *RemoveRequest) *string { return &r.Tenant })
	removeNoTenant = fill(func(r *RemoveRequest) { r.Tenant = DefaultTenant })

	remove7  = args(removeKey, removeNoForce, removeNoTenant)
	remove9  = args(removeKey, removeForce, removeNoTenant)
	remove12 = args(removeKey, removeForce, removeTenant)

	Remove = define("Remove",
		at(V0_3_7, remove7, void),
		at(V0_3_9, remove9, void),
		at(V0_3_12, remove12, void))
	RemoveByRegex = define("RemoveByRegex",
		at(V0_3_7, remove7, result(i64)),
		at(V0_3_9, remove9, result(i64)),
		at(V0_3_12, remove12, result(i64)))

	removeAllForce    = sp.F(boolean, func(r *RemoveAllRequest) *bool { return &r.Force })
	removeAllTenant   = sp.F(str, func(r *RemoveAllRequest) *string { return &r.Tenant })
	removeAllNoTenant = fill(func(r *RemoveAllRequest) { r.Tenant = DefaultTenant })

	RemoveAll = define("RemoveAll",
		at(V0_3_7, none(func(_ *sp.Decoder, r *RemoveAllRequest) { *r = RemoveAllRequest{Tenant: DefaultTenant} }), i64),
		at(V0_3_9, args(removeAllForce, removeAllNoTenant), i64),
		at(V0_3_12, args(removeAllForce, removeAllTenant), i64))

	batchRemoveKeys     = sp.F(strs, func(r *BatchRemoveRequest) *[]string { return &r.Keys })
	batchRemoveForce    = sp.F(boolean, func(r *BatchRemoveRequest) *bool { return &r.Force })
	batchRemoveTenant   = sp.F(str, func(r *BatchRemoveRequest) *string { return &r.Tenant })
	batchRemoveNoTenant = fill(func(r *BatchRemoveRequest) { r.Tenant = DefaultTenant })

	BatchRemove = define("BatchRemove",
		at(V0_3_10, args(batchRemoveKeys, batchRemoveForce, batchRemoveNoTenant), voids),
		at(V0_3_12, args(batchRemoveKeys, batchRemoveForce, batchRemoveTenant), voids))

	BatchReplicaClear = define("BatchReplicaClear",
		at(V0_3_8, args(
			sp.F(strs, func(r *BatchReplicaClearRequest) *[]string { return &r.Keys }),
			sp.F(uuid, func(r *BatchReplicaClearRequest) *UUID { return &r.Client }),
			sp.F(str, func(r *BatchReplicaClearRequest) *string { return &r.Segment })), result(strs)))
)
