package transfer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mooncake-agent/mooncake/core/transfer"
	"github.com/mooncake-agent/mooncake/core/units"
	"github.com/mooncake-agent/mooncake/internal/testenv"
	"github.com/mooncake-agent/mooncake/transports"
)

// stuckBatch submits n requests to a transport that does not answer, of which at most room reach it.
func stuckBatch(t *testing.T, ctx context.Context, n, room int, change ...func(*transfer.Options)) (*fake, *transfer.Engine, *transfer.Segment, *transfer.Batch) {
	t.Helper()
	f := newFake()
	f.hang()
	e := startEngine(t, append([]func(*transfer.Options){func(o *transfer.Options) {
		o.Transports = f.named()
		o.MaxInflightRequests = room
	}}, change...)...)
	s := open(t, e, newTarget(t, tcpDoc(1, "")).Name)
	reqs := make([]transfer.Request, n)
	for i := range reqs {
		reqs[i] = transfer.Request{Local: make([]byte, 8), Segment: s, Remote: 8}
	}
	b, err := e.Submit(ctx, reqs)
	if err != nil {
		t.Fatal(err)
	}
	f.waitOps(t, min(n, room))
	return f, e, s, b
}

func wantAll(t *testing.T, b *transfer.Batch, want transfer.State, err error) {
	t.Helper()
	select {
	case <-b.Done():
	case <-time.After(testDeadline):
		t.Fatal("the batch does not end")
	}
	for i := range b.Len() {
		if s := b.Status(i); s.State != want || !errors.Is(s.Err, err) {
			t.Fatalf("request %d: %v, %v", i, s.State, s.Err)
		}
	}
	if !errors.Is(b.Err(), err) {
		t.Errorf("Err: %v", b.Err())
	}
}

func TestCancel(t *testing.T) {
	f, e, s, b := stuckBatch(t, context.Background(), 10, 4)
	if st := b.Status(0); st.State != transfer.Waiting || st.Err != nil || b.Err() != nil {
		t.Fatalf("%+v", st)
	}
	b.Cancel()
	b.Cancel()
	wantAll(t, b, transfer.Canceled, transfer.ErrCanceled)
	if err := b.Quiet(t.Context()); err != nil {
		t.Error(err)
	}
	if n := f.count(); n != 4 {
		t.Errorf("%d ops reached the transport", n)
	}
	f.set(func() { f.stuck = false })
	if err := e.Read(t.Context(), s, make([]byte, 8), 8); err != nil { // the room is free again
		t.Error(err)
	}
	b.Cancel() // after the end: nothing
}

func TestDeadlines(t *testing.T) {
	t.Run("total", func(t *testing.T) {
		began := time.Now()
		_, _, _, b := stuckBatch(t, context.Background(), 10, 4, func(o *transfer.Options) { o.TransferTimeout = 150 * time.Millisecond })
		wantAll(t, b, transfer.TimedOut, transfer.ErrTimeout)
		if d := time.Since(began); d < 150*time.Millisecond {
			t.Errorf("after %v", d)
		}
	})
	t.Run("of the context", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, _, _, b := stuckBatch(t, ctx, 10, 4)
		wantAll(t, b, transfer.TimedOut, context.DeadlineExceeded)
	})
	t.Run("cancelled context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		_, _, _, b := stuckBatch(t, ctx, 10, 4)
		cancel()
		wantAll(t, b, transfer.Canceled, context.Canceled)
	})
	t.Run("context over before", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		f := newFake()
		e := startEngine(t, func(o *transfer.Options) { o.Transports = f.named() })
		s := open(t, e, newTarget(t, tcpDoc(1, "")).Name)
		b, err := e.Submit(ctx, []transfer.Request{{Local: make([]byte, 8), Segment: s, Remote: 8}})
		if err != nil {
			t.Fatal(err)
		}
		<-b.Done()
		if s := b.Status(0); s.State != transfer.Canceled && s.State != transfer.Completed {
			t.Errorf("%+v", s)
		}
	})
	t.Run("wait ends first", func(t *testing.T) {
		f, _, _, b := stuckBatch(t, context.Background(), 1, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if err := b.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) || b.Status(0).State != transfer.Waiting {
			t.Fatalf("%v, %+v", err, b.Status(0))
		}
		f.release(nil)
		if err := b.Wait(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A transport that does not give memory back ends in a final state all the same, and the memory is not
// used again before it did.
func TestDeafTransport(t *testing.T) {
	f := newFake()
	f.hang()
	f.deaf = true
	e := startEngine(t, func(o *transfer.Options) { o.Transports = f.named() })
	s := open(t, e, newTarget(t, tcpDoc(1, "")).Name)
	mem, addr := register(t, e, 4096)
	b, err := e.Submit(t.Context(), []transfer.Request{{Local: mem[:100], Segment: s, Remote: 8}, {Local: mem[200:300], Segment: s, Remote: 8}})
	if err != nil {
		t.Fatal(err)
	}
	f.waitOps(t, 2)
	b.Cancel()
	wantAll(t, b, transfer.Canceled, transfer.ErrUnquiet)
	if !errors.Is(b.Err(), transfer.ErrCanceled) {
		t.Errorf("got %v", b.Err())
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := b.Quiet(short); !errors.Is(err, transfer.ErrUnquiet) {
		t.Errorf("quiet: %v", err)
	}
	if _, err := e.Submit(t.Context(), []transfer.Request{{Local: mem[99:150], Segment: s, Remote: 8}}); !errors.Is(err, transfer.ErrUnquiet) {
		t.Errorf("the range was given out again: %v", err)
	}
	if err := e.Unregister(short, addr); !errors.Is(err, transfer.ErrUnquiet) {
		t.Errorf("unregister: %v", err)
	}
	f.release(nil)
	if err := b.Quiet(t.Context()); err != nil {
		t.Error(err)
	}
	if st := b.Status(0); st.State != transfer.Canceled { // the late report changes nothing
		t.Errorf("%+v", st)
	}
	if err := e.Read(t.Context(), s, mem[99:150], 8); err != nil {
		t.Error(err)
	}
	if err := e.Unregister(t.Context(), addr); err != nil {
		t.Error(err)
	}
}

// A transport may say itself that it is not quiet.
func TestUnquietTransport(t *testing.T) {
	f := newFake()
	f.answer = failing(1, transports.ErrUnquiet)
	e := startEngine(t, func(o *transfer.Options) { o.Transports = f.named() })
	s := open(t, e, newTarget(t, tcpDoc(1, "")).Name)
	mem, addr := register(t, e, 4096)
	b, err := e.Submit(t.Context(), []transfer.Request{{Local: mem[:100], Segment: s, Remote: 8}})
	if err != nil {
		t.Fatal(err)
	}
	wantAll(t, b, transfer.Failed, transfer.ErrUnquiet)
	if err := b.Quiet(t.Context()); !errors.Is(err, transfer.ErrUnquiet) {
		t.Errorf("quiet: %v", err)
	}
	if err := e.Read(t.Context(), s, mem[50:60], 8); !errors.Is(err, transfer.ErrUnquiet) {
		t.Errorf("the range was given out again: %v", err)
	}
	if err := e.Read(t.Context(), s, mem[100:200], 8); err != nil {
		t.Errorf("the rest of the region: %v", err)
	}
	if err := e.Unregister(t.Context(), addr); err != nil { // the transport has let go of the region
		t.Error(err)
	}
	if err := e.Read(t.Context(), s, mem[50:60], 8); err != nil {
		t.Error(err)
	}
}

func TestInflightBytesAreBounded(t *testing.T) {
	const limit, size = 1 << 20, 64 << 10
	f := newFake()
	f.hang()
	e := startEngine(t, func(o *transfer.Options) { o.Transports, o.MaxInflightBytes = f.named(), units.Size(limit) })
	s := open(t, e, newTarget(t, tcpDoc(1, "")).Name)
	reqs := make([]transfer.Request, 100)
	for i := range reqs {
		n := size
		if i == 50 {
			n = 3 * limit // travels alone
		}
		reqs[i] = transfer.Request{Local: make([]byte, n), Segment: s, Remote: 8}
	}
	b, err := e.Submit(t.Context(), reqs)
	if err != nil {
		t.Fatal(err)
	}
	f.waitOps(t, limit/size)
	done := make(chan struct{})
	go func() { // hand back what has arrived, again and again
		defer close(done)
		for {
			f.flush(nil)
			select {
			case <-b.Done():
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	if err := b.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-done
	if f.most != 3*limit {
		t.Errorf("%d bytes at once", f.most)
	}
}

// A short batch is not held up by a long one before it.
func TestShortBatchOvertakes(t *testing.T) {
	f, e, s, long := stuckBatch(t, context.Background(), 5000, 256)
	short, err := e.Submit(t.Context(), []transfer.Request{{Local: make([]byte, 8), Segment: s, Remote: 8}})
	if err != nil {
		t.Fatal(err)
	}
	for round := range 4 {
		f.flush(nil)
		if short.Status(0).State == transfer.Completed {
			break
		}
		if round == 3 {
			t.Fatal("the short batch still waits")
		}
		testenv.Eventually(t, testDeadline, func() error {
			f.mu.Lock()
			defer f.mu.Unlock()
			if len(f.kept) <= 256*3/4 { // below that the room is filled again
				return fmt.Errorf("%d ops", len(f.kept))
			}
			return nil
		})
	}
	select {
	case <-long.Done():
		t.Error("the long batch was done first")
	default:
	}
	long.Cancel()
	<-long.Done()
}

func TestCloseDrains(t *testing.T) {
	f, e, s, b := stuckBatch(t, context.Background(), 3, 3)
	closed := make(chan error, 1)
	go func() { closed <- e.Close(context.Background()) }()
	testenv.Eventually(t, testDeadline, func() error {
		_, err := e.Submit(t.Context(), []transfer.Request{{Local: make([]byte, 8), Segment: s, Remote: 8}})
		if !errors.Is(err, transfer.ErrState) {
			return fmt.Errorf("still takes requests: %v", err)
		}
		return nil
	})
	select {
	case err := <-closed:
		t.Fatalf("closed with requests in flight: %v", err)
	default:
	}
	f.release(nil)
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	wantAll(t, b, transfer.Completed, nil)
}

func TestCloseCancelsAtItsDeadline(t *testing.T) {
	_, e, _, b := stuckBatch(t, context.Background(), 10, 3)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := e.Close(ctx); err != nil {
		t.Fatal(err)
	}
	wantAll(t, b, transfer.Canceled, transfer.ErrCanceled)
}

func TestOptionalTransport(t *testing.T) {
	broken := newFake()
	broken.start = errors.New("no such device")
	l := &logLines{}
	e := startEngine(t, func(o *transfer.Options) {
		o.Log = newLog(l)
		o.Transports = []transfer.NamedTransport{{Name: "verbs", Transport: broken, Optional: true}, {Name: "tcp", Transport: newTCP(t, nil)}}
	})
	if !strings.Contains(l.String(), "no such device") {
		t.Errorf("log: %s", l)
	}
	_, addr := register(t, e, 64)
	a := startEngine(t)
	roundTrip(t, a, open(t, a, e.Name()), addr, 64)
	if err := e.Unregister(t.Context(), addr); err != nil {
		t.Error(err)
	}
	needed := newEngine(t, func(o *transfer.Options) {
		o.Transports = []transfer.NamedTransport{{Name: "verbs", Transport: broken}}
	})
	if err := needed.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "verbs: no such device") {
		t.Errorf("got %v", err)
	}
}

// Submissions, cancellations, failures and a Close at the same time: every batch ends, exactly once.
func TestChaos(t *testing.T) {
	f := newFake()
	errs := []error{nil, nil, nil, transports.ErrInterrupted, transports.ErrUnreachable, transports.ErrRejected, errors.New("odd")}
	f.answer = func(transports.Op) error { return errs[rand.IntN(len(errs))] }
	e := newEngine(t, func(o *transfer.Options) { o.Transports, o.MaxInflightRequests = f.named(), 32 })
	if err := e.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	var segs []*transfer.Segment
	for i := range 4 {
		segs = append(segs, open(t, e, newTarget(t, tcpDoc(i+1, "")).Name))
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for {
				reqs := make([]transfer.Request, 1+rand.IntN(100))
				for i := range reqs {
					reqs[i] = transfer.Request{Write: i%2 == 0, Local: make([]byte, rand.IntN(64)), Segment: segs[rand.IntN(len(segs))], Remote: 8}
				}
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.IntN(20))*time.Millisecond)
				b, err := e.Submit(ctx, reqs)
				if err != nil {
					cancel()
					if !errors.Is(err, transfer.ErrState) {
						t.Error(err)
					}
					return
				}
				if rand.IntN(3) == 0 {
					b.Cancel()
				}
				select {
				case <-b.Done():
				case <-time.After(testDeadline):
					t.Error("a batch does not end")
				}
				cancel()
				for i := range b.Len() {
					if b.Status(i).State == transfer.Waiting {
						t.Error("a request of a finished batch waits")
					}
				}
			}
		})
	}
	time.AfterFunc(1500*time.Millisecond, func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	wg.Wait()
	closeEngine(t, e)
}
