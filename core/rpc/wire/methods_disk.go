package wire

import sp "github.com/mooncake-agent/mooncake/core/rpc/structpack"

// Local disk, offload and promotion.

var (
	localDiskSwitch = args(
		sp.F(uuid, func(r *LocalDiskRequest) *UUID { return &r.Client }),
		sp.F(boolean, func(r *LocalDiskRequest) *bool { return &r.Enable }))

	MountLocalDiskSegment   = define("MountLocalDiskSegment", at(V0_3_8, localDiskSwitch, void))
	UnmountLocalDiskSegment = define("UnmountLocalDiskSegment", at(V0_3_13, clientID, void))
	PollRemoveAll           = define("PollRemoveAll", at(V0_3_12, clientID, result(boolean)))

	OffloadObjectHeartbeat = define("OffloadObjectHeartbeat",
		at(V0_3_8, localDiskSwitch, result(offloads8)),
		at(V0_3_12, localDiskSwitch, result(offloads12)))
	PromotionObjectHeartbeat = define("PromotionObjectHeartbeat",
		at(V0_3_11, clientID, result(offloads8)),
		at(V0_3_12, clientID, result(offloads12)))

	ReportSSDCapacity = define("ReportSsdCapacity",
		at(V0_3_11, args(
			sp.F(uuid, func(r *ReportSSDCapacityRequest) *UUID { return &r.Client }),
			sp.F(i64, func(r *ReportSSDCapacityRequest) *int64 { return &r.Bytes })), void))

	notifyClient = sp.F(uuid, func(r *NotifyOffloadRequest) *UUID { return &r.Client })
	notifyMetas  = sp.F(sp.Vector(storageMeta), func(r *NotifyOffloadRequest) *[]StorageMeta { return &r.Metas })

	NotifyOffloadSuccess = define("NotifyOffloadSuccess",
		at(V0_3_8, args(notifyClient, notifyTasks(notified8), notifyMetas), void),
		at(V0_3_12, args(notifyClient, notifyTasks(offload12), notifyMetas), void))

	promoteClient   = sp.F(uuid, func(r *PromotionAllocRequest) *UUID { return &r.Client })
	promoteKey      = sp.F(str, func(r *PromotionAllocRequest) *string { return &r.Key })
	promoteTenant   = sp.F(str, func(r *PromotionAllocRequest) *string { return &r.Tenant })
	promoteNoTenant = fill(func(r *PromotionAllocRequest) { r.Tenant = DefaultTenant })
	promoteSize     = sp.F(u64, func(r *PromotionAllocRequest) *uint64 { return &r.Size })
	promoteSegments = sp.F(strs, func(r *PromotionAllocRequest) *[]string { return &r.PreferredSegments })

	PromotionAllocStart = define("PromotionAllocStart",
		at(V0_3_11, args(promoteClient, promoteKey, promoteNoTenant, promoteSize, promoteSegments), promoted(replica11)),
		at(V0_3_12, args(promoteClient, promoteKey, promoteTenant, promoteSize, promoteSegments), promoted(replica11)),
		at(V0_3_13, args(promoteClient, promoteKey, promoteTenant, promoteSize, promoteSegments), promoted(replica13)))
	NotifyPromotionSuccess = define("NotifyPromotionSuccess",
		at(V0_3_11, object9, void),
		at(V0_3_12, object12, void))
	NotifyPromotionFailure = define("NotifyPromotionFailure",
		at(V0_3_11, object9, void),
		at(V0_3_12, object12, void))

	evictClient   = sp.F(uuid, func(r *EvictDiskRequest) *UUID { return &r.Client })
	evictKey      = sp.F(str, func(r *EvictDiskRequest) *string { return &r.Key })
	evictTenant   = sp.F(str, func(r *EvictDiskRequest) *string { return &r.Tenant })
	evictNoTenant = fill(func(r *EvictDiskRequest) { r.Tenant = DefaultTenant })
	evictType     = sp.F(replType, func(r *EvictDiskRequest) *ReplicaType { return &r.Type })

	EvictDiskReplica = define("EvictDiskReplica",
		at(V0_3_10, args(evictClient, evictKey, evictNoTenant, evictType), void),
		at(V0_3_12, args(evictClient, evictKey, evictTenant, evictType), void))

	evictsClient   = sp.F(uuid, func(r *BatchEvictDiskRequest) *UUID { return &r.Client })
	evictsKeys     = sp.F(strs, func(r *BatchEvictDiskRequest) *[]string { return &r.Keys })
	evictsTenant   = sp.F(str, func(r *BatchEvictDiskRequest) *string { return &r.Tenant })
	evictsNoTenant = fill(func(r *BatchEvictDiskRequest) { r.Tenant = DefaultTenant })
	evictsType     = sp.F(replType, func(r *BatchEvictDiskRequest) *ReplicaType { return &r.Type })

	BatchEvictDiskReplica = define("BatchEvictDiskReplica",
		at(V0_3_10, args(evictsClient, evictsKeys, evictsNoTenant, evictsType), voids),
		at(V0_3_12, args(evictsClient, evictsKeys, evictsTenant, evictsType), voids))
)

func notifyTasks(t sp.Type[OffloadTask]) sp.Field[NotifyOffloadRequest] {
	return sp.F(sp.Vector(t), func(r *NotifyOffloadRequest) *[]OffloadTask { return &r.Tasks })
}
