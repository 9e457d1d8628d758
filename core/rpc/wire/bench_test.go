package wire

import (
	"fmt"
	"testing"
)

func BenchmarkCodec(b *testing.B) {
	keys := make([]string, 100)
	for i := range keys {
		keys[i] = fmt.Sprintf("%040d", i)
	}
	replica := Replica{ID: 7, Status: StatusComplete, Size: 1 << 20, Address: 1 << 40, Protocol: "tcp", Endpoint: "127.0.0.1:15999"}
	list := Result[ReplicaList]{Value: ReplicaList{Replicas: []Replica{replica}, LeaseTTLMS: 10000}}
	lists := make([]Result[ReplicaList], 100)
	for i := range lists {
		lists[i] = list
	}
	run := func(name string, f func(buf []byte) []byte) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var buf []byte
			for b.Loop() {
				buf = f(buf[:0])
			}
			b.SetBytes(int64(len(buf)))
		})
	}
	must := func(buf []byte, err error) []byte {
		if err != nil {
			b.Fatal(err)
		}
		return buf
	}
	one := must(ExistKey.AppendRequest(nil, Newest, &KeyRequest{Key: keys[0], Tenant: DefaultTenant}, true))
	many := must(BatchExistKey.AppendRequest(nil, Newest, &KeysRequest{Keys: keys, Tenant: DefaultTenant}, true))
	put := must(PutStart.AppendRequest(nil, Newest, &PutStartRequest{Key: keys[0], Length: 1, Config: ReplicateConfig{Replicas: 1}, Tenant: DefaultTenant}, true))
	var key KeyRequest
	run("decode/ExistKey", func([]byte) []byte {
		if _, _, err := ExistKey.DecodeRequest(one, &key, true); err != nil {
			b.Fatal(err)
		}
		return one
	})
	var ks KeysRequest
	run("decode/BatchExistKey100", func([]byte) []byte {
		if _, _, err := BatchExistKey.DecodeRequest(many, &ks, true); err != nil {
			b.Fatal(err)
		}
		return many
	})
	var ps PutStartRequest
	run("decode/PutStart", func([]byte) []byte {
		if _, _, err := PutStart.DecodeRequest(put, &ps, true); err != nil {
			b.Fatal(err)
		}
		return put
	})
	exist := Result[bool]{Value: true}
	run("encode/ExistKey", func(buf []byte) []byte { return must(ExistKey.AppendResponse(buf, Newest, &exist, true)) })
	run("encode/GetReplicaList", func(buf []byte) []byte { return must(GetReplicaList.AppendResponse(buf, Newest, &list, true)) })
	run("encode/BatchGetReplicaList100", func(buf []byte) []byte {
		return must(BatchGetReplicaList.AppendResponse(buf, Newest, &lists, true))
	})
}
