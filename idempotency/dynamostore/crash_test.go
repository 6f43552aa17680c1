package dynamostore_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/testenv/dynamotest"
)

// TestCrash_ServerKilled: the server is killed during calls, and restarted with its files. Acknowledged writes are
// there, and other calls succeed when they are sent again. (DynamoDB's durability is replication, which this server
// lacks; the test is about the writes that the store reports as acknowledged.)
func TestCrash_ServerKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a server of its own twice")
	}
	t.Parallel()
	server := dynamotest.New(t)
	name := table(t, dynamoAt(t, server.URL(), nil))
	s := open(t, dynamoAt(t, server.URL(), noRetry), name)
	type call struct {
		request            idempotency.Request
		terms              store.ClaimOptions
		lease              store.Lease
		claimed, completed bool // acknowledged
		err                error
	}
	finish := func(f *call) {
		if f.err = s.Finish(t.Context(), f.lease, idempotency.Result{Code: 1, Body: []byte("b")},
			idempotency.Retention{}); f.err == nil {
			f.completed = true
		}
	}
	run := func(f *call) {
		var got store.ClaimResult
		if got, f.err = s.Claim(t.Context(), f.request, f.terms); f.err != nil {
			return
		}
		if f.claimed, f.lease = got.Won, got.Lease; !got.Won {
			f.err = fmt.Errorf("not won: %+v", got)
			return
		}
		finish(f)
	}
	var acknowledged atomic.Int64
	enough := make(chan struct{})
	calls := make([][]*call, 4)
	var callers sync.WaitGroup
	for i := range calls {
		callers.Go(func() {
			for n := 0; ; n++ {
				f := &call{request: request(fmt.Sprint(i, "-", n), "c"), terms: terms(time.Hour)}
				calls[i] = append(calls[i], f)
				if run(f); f.err != nil {
					return
				}
				if acknowledged.Add(1) == 20 {
					close(enough)
				}
			}
		})
	}
	<-enough
	server.Kill()
	callers.Wait()
	server.Start(t)
	for _, batch := range calls {
		for _, f := range batch {
			rec, found, err := s.Get(t.Context(), f.request.Key)
			if err != nil {
				t.Fatal(err)
			}
			if f.claimed && (!found || rec.Fence != f.lease.Fence) || f.completed &&
				(rec.State != idempotency.Completed || string(rec.Result.Body) != "b") {
				t.Errorf("acknowledged and lost: %+v is %+v", f, rec)
			}
			if f.err == nil {
				continue
			}
			if f.claimed {
				finish(f)
			} else {
				run(f)
			}
			if f.err != nil {
				t.Errorf("sent again: %v", f.err)
			}
		}
	}
}
