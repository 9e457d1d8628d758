package wire

import sp "github.com/mooncake-agent/mooncake/core/rpc/structpack"

// Copy and move: the calls of the client that moves the data, then those that order it.

var (
	objClient   = sp.F(uuid, func(r *ObjectTaskRequest) *UUID { return &r.Client })
	objKey      = sp.F(str, func(r *ObjectTaskRequest) *string { return &r.Key })
	objTenant   = sp.F(str, func(r *ObjectTaskRequest) *string { return &r.Tenant })
	objNoTenant = fill(func(r *ObjectTaskRequest) { r.Tenant = DefaultTenant })
	objLease    = sp.F(uuid, func(r *ObjectTaskRequest) *UUID { return &r.LeaseID })
	objEpoch    = sp.F(u64, func(r *ObjectTaskRequest) *uint64 { return &r.Epoch })
	objNoLease  = fill(func(r *ObjectTaskRequest) { r.LeaseID, r.Epoch = UUID{}, 0 })

	object9       = args(objClient, objKey, objNoTenant, objNoLease)
	object12      = args(objClient, objKey, objTenant, objNoLease)
	objectDynamic = args(objClient, objKey, objTenant, objLease, objEpoch)

	copyClient   = sp.F(uuid, func(r *CopyStartRequest) *UUID { return &r.Client })
	copyKey      = sp.F(str, func(r *CopyStartRequest) *string { return &r.Key })
	copyTenant   = sp.F(str, func(r *CopyStartRequest) *string { return &r.Tenant })
	copyNoTenant = fill(func(r *CopyStartRequest) { r.Tenant = DefaultTenant })
	copySource   = sp.F(str, func(r *CopyStartRequest) *string { return &r.Source })
	copyTo       = sp.F(strs, func(r *CopyStartRequest) *[]string { return &r.Targets })
	copyLease    = sp.F(uuid, func(r *CopyStartRequest) *UUID { return &r.LeaseID })
	copyEpoch    = sp.F(u64, func(r *CopyStartRequest) *uint64 { return &r.Epoch })
	copyNoLease  = fill(func(r *CopyStartRequest) { r.LeaseID, r.Epoch = UUID{}, 0 })
	copy9        = args(copyClient, copyKey, copyNoTenant, copySource, copyTo, copyNoLease)
	copy12       = args(copyClient, copyKey, copyTenant, copySource, copyTo, copyNoLease)

	CopyStart = define("CopyStart",
		at(V0_3_9, copy9, copyTargets(replica9, replicas9)),
		at(V0_3_11, copy9, copyTargets(replica11, replicas11)),
		at(V0_3_12, copy12, copyTargets(replica11, replicas11)),
		at(V0_3_13, copy12, copyTargets(replica13, replicas13)))
	DynamicReplicaCopyStart = define("DynamicReplicaCopyStart",
		at(V0_3_13, args(copyClient, copyKey, copyTenant, copySource, copyTo, copyLease, copyEpoch), copyTargets(replica13, replicas13)))
	CopyEnd                  = define("CopyEnd", at(V0_3_9, object9, void), at(V0_3_12, object12, void))
	DynamicReplicaCopyEnd    = define("DynamicReplicaCopyEnd", at(V0_3_13, objectDynamic, void))
	CopyRevoke               = define("CopyRevoke", at(V0_3_9, object9, void), at(V0_3_12, object12, void))
	DynamicReplicaCopyRevoke = define("DynamicReplicaCopyRevoke", at(V0_3_13, objectDynamic, void))

	moveClient   = sp.F(uuid, func(r *MoveStartRequest) *UUID { return &r.Client })
	moveKey      = sp.F(str, func(r *MoveStartRequest) *string { return &r.Key })
	moveTenant   = sp.F(str, func(r *MoveStartRequest) *string { return &r.Tenant })
	moveNoTenant = fill(func(r *MoveStartRequest) { r.Tenant = DefaultTenant })
	moveSource   = sp.F(str, func(r *MoveStartRequest) *string { return &r.Source })
	moveTo       = sp.F(str, func(r *MoveStartRequest) *string { return &r.Target })
	move9        = args(moveClient, moveKey, moveNoTenant, moveSource, moveTo)
	move12       = args(moveClient, moveKey, moveTenant, moveSource, moveTo)

	MoveStart = define("MoveStart",
		at(V0_3_9, move9, moveTarget(replica9)),
		at(V0_3_11, move9, moveTarget(replica11)),
		at(V0_3_12, move12, moveTarget(replica11)),
		at(V0_3_13, move12, moveTarget(replica13)))
	MoveEnd    = define("MoveEnd", at(V0_3_9, object9, void), at(V0_3_12, object12, void))
	MoveRevoke = define("MoveRevoke", at(V0_3_9, object9, void), at(V0_3_12, object12, void))

	newCopyKey      = sp.F(str, func(r *CreateCopyTaskRequest) *string { return &r.Key })
	newCopyTenant   = sp.F(str, func(r *CreateCopyTaskRequest) *string { return &r.Tenant })
	newCopyNoTenant = fill(func(r *CreateCopyTaskRequest) { r.Tenant = DefaultTenant })
	newCopyTo       = sp.F(strs, func(r *CreateCopyTaskRequest) *[]string { return &r.Targets })

	CreateCopyTask = define("CreateCopyTask",
		at(V0_3_8, args(newCopyKey, newCopyNoTenant, newCopyTo), result(uuid)),
		at(V0_3_12, args(newCopyKey, newCopyTenant, newCopyTo), result(uuid)))

	newMoveKey      = sp.F(str, func(r *CreateMoveTaskRequest) *string { return &r.Key })
	newMoveTenant   = sp.F(str, func(r *CreateMoveTaskRequest) *string { return &r.Tenant })
	newMoveNoTenant = fill(func(r *CreateMoveTaskRequest) { r.Tenant = DefaultTenant })
	newMoveSource   = sp.F(str, func(r *CreateMoveTaskRequest) *string { return &r.Source })
	newMoveTo       = sp.F(str, func(r *CreateMoveTaskRequest) *string { return &r.Target })

	CreateMoveTask = define("CreateMoveTask",
		at(V0_3_8, args(newMoveKey, newMoveNoTenant, newMoveSource, newMoveTo), result(uuid)),
		at(V0_3_12, args(newMoveKey, newMoveTenant, newMoveSource, newMoveTo), result(uuid)))

	QueryTask = define("QueryTask", at(V0_3_8, byID, result(taskState)))

	fetchTasks = args(
		sp.F(uuid, func(r *FetchTasksRequest) *UUID { return &r.Client }),
		sp.F(u64, func(r *FetchTasksRequest) *uint64 { return &r.Limit }))

	FetchTasks = define("FetchTasks",
		at(V0_3_8, fetchTasks, result(sp.Vector(assignment8))),
		at(V0_3_10, fetchTasks, result(sp.Vector(assignment10))))

	// The second argument is a struct of its own.
	taskOutcome = sp.Struct(
		sp.F(uuid, func(r *CompleteTaskRequest) *UUID { return &r.ID }),
		sp.F(taskStatus, func(r *CompleteTaskRequest) *TaskStatus { return &r.Status }),
		sp.F(str, func(r *CompleteTaskRequest) *string { return &r.Message }))

	MarkTaskToComplete = define("MarkTaskToComplete",
		at(V0_3_8, args(
			sp.F(uuid, func(r *CompleteTaskRequest) *UUID { return &r.Client }),
			sp.F(taskOutcome, func(r *CompleteTaskRequest) *CompleteTaskRequest { return r })), void))
)
