package wire

import (
	"encoding/hex"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// Round trips cannot tell two neighbours of one type apart, so the values of the golden messages
// are spelled out here.

var (
	goldClient = UUID{1234605616436508552, 11072869122414935808}
	goldTask   = UUID{12297829382473034410, 13527612320720337851}
	goldConfig = ReplicateConfig{Replicas: 1}
	goldFull   = ReplicateConfig{Replicas: 2, NoFReplicas: 1, DFSReplicas: 1, SoftPin: SoftPinEnable, SoftPinTTLMS: some[uint64](60000), HardPin: true,
		PreferredSegments: []string{"segA", "segB"}, PreferredSegment: "segC", PreferredNoFSegments: []string{"nofA"}, PreferSameNode: true, DataType: 2,
		HostID: "host-1", GroupIDs: some([]string{"g1", ""})}
	goldSegment = Segment{ID: UUID{1, 2}, Name: "127.0.0.1:12345", Base: 139637976727552, Size: 16777216, TEEndpoint: "127.0.0.1:12345", Protocol: "tcp", HostID: "host-1"}
	goldNoF     = Segment{ID: UUID{1, 2}, Name: "nofA", Size: 1073741824, TEEndpoint: "nqn.x"}
	goldMetas   = []ObjectMeta{{Key: "key1"}, {Key: "key2", Checksum: some[uint64](72623859790382856)}}
	goldReplica = Replica{ID: 5, Status: StatusComplete, Size: 4096, Address: 139637976731648, Protocol: "tcp", Endpoint: "127.0.0.1:12345"}
	goldNew     = Replica{ID: 6, Status: StatusProcessing, Size: 4096, Address: 139637976731648, Protocol: "tcp", Endpoint: "127.0.0.1:12345"}
	goldEvery   = []Replica{goldReplica,
		{ID: 7, Kind: KindNoF, Status: StatusComplete, Size: 8192, Address: 4096, Protocol: "nof", Endpoint: "nqn.x"},
		{ID: 8, Kind: KindDisk, Status: StatusComplete, Size: 77, Path: "/mnt/c/ab/k"},
		{ID: 9, Kind: KindLocalDisk, Status: StatusComplete, Size: 78, Client: goldClient, Endpoint: "127.0.0.1:50052"},
		{ID: 10, Kind: KindDFS, Status: StatusComplete, Size: 79, Path: "/dfs/shard_0", Offset: 4096, AlignedSize: 4096, Shard: 3}}
	goldOffload = []OffloadTask{{Tenant: "default", Key: "key1", Size: 4096}}
)

func some[T any](v T) Opt[T] { return Opt[T]{Value: v, OK: true} }

func ok[T any](v T) *Result[T] { return &Result[T]{Value: v} }

func fails[T any](c ErrorCode) *Result[T] { return &Result[T]{Code: c} }

func TestGoldenFields(t *testing.T) {
	var file goldenFile
	load(t, "golden.json", &file)
	golden := map[string]struct{ requests, responses []goldenMessage }{}
	for _, r := range file.RPCs {
		golden[r.RPC] = struct{ requests, responses []goldenMessage }{r.Requests, r.Responses}
	}
	keys := []string{"key1", "key2"}
	object := &ObjectTaskRequest{Client: goldClient, Key: "key1", Tenant: "default"}
	dynamic := &ObjectTaskRequest{Client: goldClient, Key: "key1", Tenant: "default", LeaseID: goldTask, Epoch: 9}
	client := &ClientRequest{goldClient}
	voidOK, voidErr := ok(Void{}), fails[Void](ErrObjectNotFound)
	voidList := &[]Result[Void]{{}, {Code: ErrObjectNotFound}}
	putOK := ok([]Replica{goldNew})
	putList := &[]Result[[]Replica]{{Value: []Replica{goldNew}}, {Code: ErrObjectAlreadyExists}}
	copied := ok(CopyTargets{Source: goldReplica, Targets: []Replica{goldNew}})
	put := &PutStartRequest{Client: goldClient, Key: "key1", Length: 4096, Config: goldConfig, Tenant: "default"}
	batchPut := &BatchPutStartRequest{Client: goldClient, Keys: keys, Lengths: []uint64{1, 2}, Config: goldConfig, Tenant: "default"}
	end := &PutEndRequest{Client: goldClient, Meta: goldMetas[0], Type: ReplicaAll, Tenant: "default"}
	revoke := &PutRevokeRequest{Client: goldClient, Key: "key1", Type: ReplicaAll, Tenant: "default"}
	ends := &BatchPutEndRequest{Client: goldClient, Metas: goldMetas, Type: ReplicaAll, Tenant: "default"}

	for name, want := range map[string]struct{ requests, responses []any }{
		"ExistKey":              {l(&KeyRequest{"key1", "default"}), l(ok(true), ok(false), fails[bool](ErrObjectNotFound))},
		"BatchQueryIp":          {l(&BatchQueryIPRequest{[]UUID{goldClient, {1, 2}}}), l(ok([]Pair[UUID, []string]{{Key: goldClient, Value: []string{"127.0.0.1"}}}))},
		"BatchReplicaClear":     {l(&BatchReplicaClearRequest{[]string{"k1", "k2"}, goldClient, "seg"}), l(ok([]string{"k1"}))},
		"GetReplicaListByRegex": {l(&KeyRequest{"^k.*", "default"}), l(ok([]Pair[string, []Replica]{{Key: "key1", Value: []Replica{goldReplica}}}))},
		"GetReplicaList": {l(&KeyRequest{"key1", "default"}), l(ok(ReplicaList{Replicas: goldEvery, LeaseTTLMS: 10000}),
			ok(ReplicaList{Replicas: []Replica{goldReplica}, LeaseTTLMS: 5000, Checksum: some[uint64](3735928559)}), fails[ReplicaList](ErrObjectNotFound))},
		"BatchGetReplicaList": {l(&KeysRequest{keys, "default"}),
			l(&[]Result[ReplicaList]{{Value: ReplicaList{Replicas: []Replica{goldReplica}, LeaseTTLMS: 5000, Checksum: some[uint64](3735928559)}}, {Code: ErrObjectNotFound}})},
		"PutStart":                 {l(put, &PutStartRequest{Client: goldClient, Key: "key1", Length: 4096, Config: goldFull, Tenant: "default"}), l(putOK, fails[[]Replica](ErrNoAvailableHandle))},
		"PutEnd":                   {l(end, &PutEndRequest{Client: goldClient, Meta: goldMetas[1], Type: ReplicaMemory, Tenant: "default"}), l(voidOK, voidErr)},
		"PutRevoke":                {l(revoke), l(voidOK, voidErr)},
		"BatchPutStart":            {l(batchPut), l(putList)},
		"BatchPutEnd":              {l(ends), l(voidList)},
		"BatchPutRevoke":           {l(&BatchPutRevokeRequest{goldClient, keys, ReplicaAll, "default"}), l(voidList)},
		"UpsertStart":              {l(put), l(putOK)},
		"UpsertEnd":                {l(end), l(voidOK)},
		"UpsertRevoke":             {l(revoke), l(voidOK)},
		"BatchUpsertStart":         {l(batchPut), l(&[]Result[[]Replica]{{Value: []Replica{goldNew}}, {Code: ErrObjectNotFound}})},
		"BatchUpsertEnd":           {l(ends), l(voidList)},
		"BatchUpsertRevoke":        {l(&BatchPutRevokeRequest{goldClient, keys[:1], ReplicaAll, "default"}), l(voidList)},
		"Remove":                   {l(&RemoveRequest{"key1", false, "default"}, &RemoveRequest{"key1", true, "default"}), l(voidOK, fails[Void](ErrObjectHasLease))},
		"RemoveByRegex":            {l(&RemoveRequest{"^k", false, "default"}), l(ok(int64(3)))},
		"RemoveAll":                {l(&RemoveAllRequest{false, "default"}), l(ptr(int64(5)))},
		"BatchRemove":              {l(&BatchRemoveRequest{keys, false, "default"}), l(voidList)},
		"MountSegment":             {l(&MountSegmentRequest{goldSegment, goldClient}), l(voidOK, fails[Void](ErrSegmentAlreadyExists))},
		"MountNoFSegment":          {l(&MountSegmentRequest{goldNoF, goldClient}), l(voidOK)},
		"ReMountSegment":           {l(&ReMountSegmentRequest{[]Segment{goldSegment}, goldClient}, &ReMountSegmentRequest{nil, goldClient}), l(voidOK)},
		"ReMountNoFSegment":        {l(&ReMountSegmentRequest{[]Segment{goldNoF}, goldClient}), l(voidOK)},
		"UnmountSegment":           {l(&UnmountSegmentRequest{UUID{1, 2}, goldClient, 0}), l(voidOK)},
		"GracefulUnmountSegment":   {l(&UnmountSegmentRequest{UUID{1, 2}, goldClient, 5000}), l(voidOK)},
		"UnmountNoFSegment":        {l(&UnmountSegmentRequest{UUID{1, 2}, goldClient, 0}), l(voidOK)},
		"GetAllNoFSegments":        {l(&NoArgs{}), l(ok([]Segment{goldNoF}))},
		"GetNoFSegmentsByName":     {l(&NameRequest{"nofA"}), l(ok([]SegmentOwner{{UUID{1, 2}, goldClient}}))},
		"Ping":                     {l(client), l(ok(PingReply{3, ClientOK}), ok(PingReply{0, ClientNeedRemount}))},
		"GetFsdir":                 {l(&NoArgs{}), l(ok("mooncake_cluster"), fails[string](ErrInvalidParams))},
		"QuerySegmentStatus":       {l(&NameRequest{"segA"}), l(ok(SegmentOK), fails[SegmentStatus](ErrSegmentNotFound))},
		"QuerySegmentStatusById":   {l(&IDRequest{UUID{1, 2}}), l(ok(SegmentDraining))},
		"GetStorageConfig":         {l(&NoArgs{}), l(ok(StorageConfig{"/mnt/x/mooncake_cluster", true, 1000}), ok(StorageConfig{"", true, 0}))},
		"BatchExistKey":            {l(&KeysRequest{keys, "default"}), l(&[]Result[bool]{{Value: true}, {}, {Code: ErrObjectNotFound}})},
		"ServiceReady":             {l(&NoArgs{}), l(ok("2.0.0"))},
		"MountLocalDiskSegment":    {l(&LocalDiskRequest{goldClient, true}), l(voidOK)},
		"UnmountLocalDiskSegment":  {l(client), l(voidOK)},
		"OffloadObjectHeartbeat":   {l(&LocalDiskRequest{goldClient, true}), l(ok(goldOffload), fails[[]OffloadTask](ErrSegmentNotFound))},
		"ReportSsdCapacity":        {l(&ReportSSDCapacityRequest{goldClient, 1099511627776}), l(voidOK)},
		"NotifyOffloadSuccess":     {l(&NotifyOffloadRequest{goldClient, goldOffload, []StorageMeta{{1, 2, 4, 4096, "127.0.0.1:50052"}}}), l(voidOK)},
		"PromotionObjectHeartbeat": {l(client), l(ok(goldOffload))},
		"PromotionAllocStart":      {l(&PromotionAllocRequest{goldClient, "key1", "default", 4096, []string{"segA"}}), l(ok(goldNew))},
		"NotifyPromotionSuccess":   {l(object), l(voidOK)},
		"NotifyPromotionFailure":   {l(object), l(voidOK)},
		"CopyStart":                {l(&CopyStartRequest{goldClient, "key1", "default", "segA", []string{"segB"}, UUID{}, 0}), l(copied)},
		"DynamicReplicaCopyStart":  {l(&CopyStartRequest{goldClient, "key1", "default", "segA", []string{"segB"}, goldTask, 9}), l(copied)},
		"CopyEnd":                  {l(object), l(voidOK)},
		"DynamicReplicaCopyEnd":    {l(dynamic), l(voidOK)},
		"CopyRevoke":               {l(object), l(voidOK)},
		"DynamicReplicaCopyRevoke": {l(dynamic), l(voidOK)},
		"MoveStart":                {l(&MoveStartRequest{goldClient, "key1", "default", "segA", "segB"}), l(ok(MoveTarget{goldReplica, some(goldNew)}), ok(MoveTarget{Source: goldReplica}))},
		"MoveEnd":                  {l(object), l(voidOK)},
		"MoveRevoke":               {l(object), l(voidOK)},
		"EvictDiskReplica":         {l(&EvictDiskRequest{goldClient, "key1", "default", ReplicaLocalDisk}), l(voidOK)},
		"BatchEvictDiskReplica":    {l(&BatchEvictDiskRequest{goldClient, keys[:1], "default", ReplicaDisk}), l(voidList)},
		"PollRemoveAll":            {l(client), l(ok(false), ok(true))},
		"CreateCopyTask":           {l(&CreateCopyTaskRequest{"key1", "default", []string{"segB"}}), l(ok(goldTask))},
		"CreateMoveTask":           {l(&CreateMoveTaskRequest{"key1", "default", "segA", "segB"}), l(ok(goldTask))},
		"QueryTask":                {l(&IDRequest{goldTask}), l(ok(TaskState{goldTask, TaskMove, TaskSuccess, 1700000000000, 1700000000001, goldClient, "ok"}))},
		"FetchTasks":               {l(&FetchTasksRequest{goldClient, 16}), l(ok([]TaskAssignment{{goldTask, TaskCopy, `{"tenant_id":"default"}`, 1700000000000, 10}}))},
		"MarkTaskToComplete":       {l(&CompleteTaskRequest{goldClient, goldTask, TaskFailed, "m"}), l(voidOK)},
	} {
		t.Run(name, func(t *testing.T) {
			m := method(t, name)
			g, found := golden[name]
			if !found || len(g.requests) < len(want.requests) || len(g.responses) < len(want.responses) {
				t.Fatal("too few golden messages")
			}
			for i, w := range want.requests {
				got := m.newRequest()
				if _, _, err := m.decodeRequest(g.requests[i].Literal, got); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(w, got, cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("request %d (-want +got):\n%s", i, diff)
				}
			}
			for i, w := range want.responses {
				got := m.newResponse()
				if err := m.decodeResponse(V0_3_13, g.responses[i].Literal, got); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(w, got, cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("response %d (-want +got):\n%s", i, diff)
				}
			}
			delete(golden, name)
		})
	}
	delete(golden, "CalcCacheStats") // compiled upstream but not registered
	for name := range golden {
		t.Errorf("%s is not covered", name)
	}
}

func l(v ...any) []any { return v }

func ptr[T any](v T) *T { return &v }

// TestOlderVersions writes one value in every version and reads it back: what the version does not
// carry has its default, the rest is intact.
func TestOlderVersions(t *testing.T) {
	type change struct {
		from Version
		want any
	}
	replicaSets := []change{
		{V0_3_7, []Replica{{Status: StatusComplete, Size: 4096, Address: 139637976731648, Endpoint: "127.0.0.1:12345"},
			{Kind: KindDisk, Status: StatusComplete, Size: 77, Path: "/mnt/c/ab/k"}}},
		{V0_3_8, []Replica{{Status: StatusComplete, Size: 4096, Address: 139637976731648, Endpoint: "127.0.0.1:12345"},
			{Kind: KindDisk, Status: StatusComplete, Size: 77, Path: "/mnt/c/ab/k"},
			{Kind: KindLocalDisk, Status: StatusComplete, Size: 78, Client: goldClient, Endpoint: "127.0.0.1:50052"}}},
		{V0_3_9, []Replica{goldEvery[0], goldEvery[2], goldEvery[3]}},
		{V0_3_11, goldEvery[:4]},
		{V0_3_13, goldEvery},
	}
	lists := func(wrap func([]Replica, Version) any) (cs []change) {
		for _, c := range replicaSets {
			cs = append(cs, change{c.from, wrap(c.want.([]Replica), c.from)})
		}
		return cs
	}
	put := func(c ReplicateConfig, tenant string, client UUID, slices []uint64) *PutStartRequest {
		return &PutStartRequest{Client: client, Key: "k", Length: 10, Slices: slices, Config: c, Tenant: tenant}
	}
	cfg := func(edit func(*ReplicateConfig)) ReplicateConfig {
		c := goldFull
		edit(&c)
		return c
	}
	cfg12 := cfg(func(c *ReplicateConfig) { c.DFSReplicas, c.SoftPinTTLMS = 0, Opt[uint64]{} })
	cfg11 := cfg12
	cfg11.HostID, cfg11.GroupIDs = "", Opt[[]string]{}
	cfg10 := cfg11
	cfg10.NoFReplicas, cfg10.PreferredNoFSegments, cfg10.DataType = 0, nil, 0
	cfg8 := cfg10
	cfg8.HardPin = false
	cfg7 := cfg8
	cfg7.PreferredSegments = nil
	const tenant = "team"

	for _, c := range []struct {
		method   string
		value    any
		response bool
		wants    []change
	}{
		{"PutStart", put(goldFull, tenant, goldClient, []uint64{4, 6}), false, []change{
			{V0_3_7, put(cfg7, "default", UUID{}, []uint64{4, 6})}, {V0_3_8, put(cfg8, "default", goldClient, nil)},
			{V0_3_10, put(cfg10, "default", goldClient, nil)}, {V0_3_11, put(cfg11, "default", goldClient, nil)},
			{V0_3_12, put(cfg12, tenant, goldClient, nil)}, {V0_3_13, put(goldFull, tenant, goldClient, nil)}}},
		{"BatchPutStart", &BatchPutStartRequest{goldClient, []string{"a", "b"}, []uint64{5, 6}, nil, goldConfig, tenant}, false, []change{
			{V0_3_7, &BatchPutStartRequest{UUID{}, []string{"a", "b"}, []uint64{5, 6}, [][]uint64{{5}, {6}}, goldConfig, "default"}},
			{V0_3_8, &BatchPutStartRequest{goldClient, []string{"a", "b"}, []uint64{5, 6}, nil, goldConfig, "default"}},
			{V0_3_12, &BatchPutStartRequest{goldClient, []string{"a", "b"}, []uint64{5, 6}, nil, goldConfig, tenant}}}},
		{"PutEnd", &PutEndRequest{goldClient, goldMetas[1], ReplicaDisk, tenant}, false, []change{
			{V0_3_7, &PutEndRequest{UUID{}, ObjectMeta{Key: "key2"}, ReplicaDisk, "default"}},
			{V0_3_8, &PutEndRequest{goldClient, ObjectMeta{Key: "key2"}, ReplicaDisk, "default"}},
			{V0_3_12, &PutEndRequest{goldClient, ObjectMeta{Key: "key2"}, ReplicaDisk, tenant}},
			{V0_3_13, &PutEndRequest{goldClient, goldMetas[1], ReplicaDisk, tenant}}}},
		{"BatchPutEnd", &BatchPutEndRequest{goldClient, goldMetas, ReplicaNoF, tenant}, false, []change{
			{V0_3_7, &BatchPutEndRequest{UUID{}, []ObjectMeta{{Key: "key1"}, {Key: "key2"}}, ReplicaMemory, "default"}},
			{V0_3_8, &BatchPutEndRequest{goldClient, []ObjectMeta{{Key: "key1"}, {Key: "key2"}}, ReplicaMemory, "default"}},
			{V0_3_11, &BatchPutEndRequest{goldClient, []ObjectMeta{{Key: "key1"}, {Key: "key2"}}, ReplicaNoF, "default"}},
			{V0_3_12, &BatchPutEndRequest{goldClient, []ObjectMeta{{Key: "key1"}, {Key: "key2"}}, ReplicaNoF, tenant}},
			{V0_3_13, &BatchPutEndRequest{goldClient, goldMetas, ReplicaNoF, tenant}}}},
		{"BatchPutRevoke", &BatchPutRevokeRequest{goldClient, []string{"a"}, ReplicaNoF, tenant}, false, []change{
			{V0_3_7, &BatchPutRevokeRequest{UUID{}, []string{"a"}, ReplicaMemory, "default"}},
			{V0_3_8, &BatchPutRevokeRequest{goldClient, []string{"a"}, ReplicaMemory, "default"}},
			{V0_3_11, &BatchPutRevokeRequest{goldClient, []string{"a"}, ReplicaNoF, "default"}},
			{V0_3_12, &BatchPutRevokeRequest{goldClient, []string{"a"}, ReplicaNoF, tenant}}}},
		{"Remove", &RemoveRequest{"k", true, tenant}, false, []change{
			{V0_3_7, &RemoveRequest{"k", false, "default"}}, {V0_3_9, &RemoveRequest{"k", true, "default"}}, {V0_3_12, &RemoveRequest{"k", true, tenant}}}},
		{"RemoveAll", &RemoveAllRequest{true, tenant}, false, []change{
			{V0_3_7, &RemoveAllRequest{false, "default"}}, {V0_3_9, &RemoveAllRequest{true, "default"}}, {V0_3_12, &RemoveAllRequest{true, tenant}}}},
		{"ExistKey", &KeyRequest{"k", tenant}, false, []change{{V0_3_7, &KeyRequest{"k", "default"}}, {V0_3_12, &KeyRequest{"k", tenant}}}},
		{"MountSegment", &MountSegmentRequest{goldSegment, goldClient}, false, []change{
			{V0_3_7, &MountSegmentRequest{Segment{goldSegment.ID, goldSegment.Name, goldSegment.Base, goldSegment.Size, goldSegment.TEEndpoint, "", ""}, goldClient}},
			{V0_3_9, &MountSegmentRequest{Segment{goldSegment.ID, goldSegment.Name, goldSegment.Base, goldSegment.Size, goldSegment.TEEndpoint, "tcp", ""}, goldClient}},
			{V0_3_12, &MountSegmentRequest{goldSegment, goldClient}}}},
		{"NotifyOffloadSuccess", &NotifyOffloadRequest{goldClient, []OffloadTask{{tenant, "k", 3}}, []StorageMeta{{1, 2, 3, 4, "e"}}}, false, []change{
			{V0_3_8, &NotifyOffloadRequest{goldClient, []OffloadTask{{"default", "k", 0}}, []StorageMeta{{1, 2, 3, 4, "e"}}}},
			{V0_3_12, &NotifyOffloadRequest{goldClient, []OffloadTask{{tenant, "k", 3}}, []StorageMeta{{1, 2, 3, 4, "e"}}}}}},
		{"CopyStart", &CopyStartRequest{goldClient, "k", tenant, "a", []string{"b"}, goldTask, 4}, false, []change{
			{V0_3_9, &CopyStartRequest{goldClient, "k", "default", "a", []string{"b"}, UUID{}, 0}},
			{V0_3_12, &CopyStartRequest{goldClient, "k", tenant, "a", []string{"b"}, UUID{}, 0}}}},
		{"CreateMoveTask", &CreateMoveTaskRequest{"k", tenant, "a", "b"}, false, []change{
			{V0_3_8, &CreateMoveTaskRequest{"k", "default", "a", "b"}}, {V0_3_12, &CreateMoveTaskRequest{"k", tenant, "a", "b"}}}},
		{"EvictDiskReplica", &EvictDiskRequest{goldClient, "k", tenant, ReplicaDisk}, false, []change{
			{V0_3_10, &EvictDiskRequest{goldClient, "k", "default", ReplicaDisk}}, {V0_3_12, &EvictDiskRequest{goldClient, "k", tenant, ReplicaDisk}}}},
		{"PromotionAllocStart", &PromotionAllocRequest{goldClient, "k", tenant, 7, []string{"s"}}, false, []change{
			{V0_3_11, &PromotionAllocRequest{goldClient, "k", "default", 7, []string{"s"}}}, {V0_3_12, &PromotionAllocRequest{goldClient, "k", tenant, 7, []string{"s"}}}}},

		{"ServiceReady", ok("2.0.0"), true, []change{{V0_3_7, ok("")}, {V0_3_8, ok("2.0.0")}}},
		{"GetReplicaList", ok(ReplicaList{goldEvery, 9, some[uint64](8)}), true, lists(func(rs []Replica, v Version) any {
			list := ReplicaList{Replicas: rs, LeaseTTLMS: 9}
			if v >= V0_3_13 {
				list.Checksum = some[uint64](8)
			}
			return ok(list)
		})},
		{"PutStart", ok(goldEvery), true, lists(func(rs []Replica, _ Version) any { return ok(rs) })},
		{"BatchPutStart", &[]Result[[]Replica]{{Value: goldEvery}, {Code: -7}}, true, lists(func(rs []Replica, _ Version) any {
			return &[]Result[[]Replica]{{Value: rs}, {Code: -7}}
		})},
		{"GetReplicaListByRegex", ok([]Pair[string, []Replica]{{Key: "k", Value: goldEvery}}), true, lists(func(rs []Replica, _ Version) any {
			return ok([]Pair[string, []Replica]{{Key: "k", Value: rs}})
		})},
		{"FetchTasks", ok([]TaskAssignment{{goldTask, TaskMove, "p", 5, 6}}), true, []change{
			{V0_3_8, ok([]TaskAssignment{{goldTask, TaskMove, "p", 5, 0}})}, {V0_3_10, ok([]TaskAssignment{{goldTask, TaskMove, "p", 5, 6}})}}},
		{"OffloadObjectHeartbeat", ok([]OffloadTask{{tenant, "k", 3}}), true, []change{
			{V0_3_8, ok([]OffloadTask{{"default", "k", 3}})}, {V0_3_12, ok([]OffloadTask{{tenant, "k", 3}})}}},
	} {
		m := method(t, c.method)
		for _, v := range m.Versions().Versions() {
			t.Run(fmt.Sprintf("%s/%s/response=%v", c.method, v, c.response), func(t *testing.T) {
				var want any
				for _, x := range c.wants {
					if x.from <= v {
						want = x.want
					}
				}
				var got any
				if c.response {
					body, err := m.appendResponse(v, c.value, true)
					if err != nil {
						t.Fatal(err)
					}
					got = m.newResponse()
					if err := m.decodeResponse(v, body, got); err != nil {
						t.Fatal(err)
					}
				} else {
					body, err := m.appendRequest(v, c.value, false)
					if err != nil {
						t.Fatal(err)
					}
					got = m.newRequest()
					if set, _, err := m.decodeRequest(body, got); err != nil || !set.Has(v) {
						t.Fatalf("versions %s, %v", set, err)
					}
				}
				if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		}
	}
}

// TestSlicesOf0_3_7 checks the parts in which 0.3.7 sees a replica.
func TestSlicesOf0_3_7(t *testing.T) {
	r := Replica{Status: StatusComplete, Size: 10, Address: 100, Endpoint: "e", Slices: []uint64{4, 6}}
	body, err := PutStart.AppendResponse(nil, V0_3_7, ok([]Replica{r}), false)
	if err != nil {
		t.Fatal(err)
	}
	const want = "01" + "01" + "00" + "02" + "0400000000000000" + "6400000000000000" + "0165" + "0600000000000000" + "6800000000000000" + "0165" + "03000000"
	if got := hex.EncodeToString(body[4:]); got != want {
		t.Errorf("wrote %s, want %s", got, want)
	}
	var back Result[[]Replica]
	if err := PutStart.DecodeResponse(body, V0_3_7, &back, false); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Replica{r}, back.Value); diff != "" {
		t.Error(diff)
	}
	body[4+4+16+2+8]++ // the second part no longer follows the first
	if err := PutStart.DecodeResponse(body, V0_3_7, &back, false); err == nil {
		t.Error("parts with a gap were accepted")
	}
	var req PutStartRequest
	overflow, err := PutStart.AppendRequest(nil, V0_3_7, &PutStartRequest{Key: "k", Slices: []uint64{1 << 63, 1 << 63}}, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := PutStart.DecodeRequest(overflow, &req, false); err == nil {
		t.Errorf("slice lengths of 2^64 in all were accepted as %d", req.Length)
	}
}
