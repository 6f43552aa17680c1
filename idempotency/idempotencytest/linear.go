package idempotencytest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	mathrand "math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// historyLinearizable: concurrent clients claim, write, recover and crash, on one key. Some order of steps of the state
// machine must explain their overlapping calls; a call whose reply was lost may have happened at any time after it was
// sent, or never.
func historyLinearizable(t *testing.T, s *suite) {
	for range 5 {
		c := &recording{s: s, op: "op-" + rand.Text(), began: time.Now()}
		c.r = (&suite{op: c.op}).fresh()
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() { c.client(t, i) })
		}
		wg.Wait()
		c.call(t, 99, linIn{kind: "claim", token: rand.Text()}, 0) // reads the final state
		switch porcupine.CheckOperationsTimeout(linModel(s.Features.OwnClocks), c.ops, 20*time.Second) {
		case porcupine.Illegal:
			for _, op := range c.ops {
				t.Logf("%10d %10d client %d: %+v -> %+v", op.Call/1000, op.Return/1000, op.ClientId, op.Input,
					op.Output)
			}
			t.Fatal("no order of the calls explains their replies")
		case porcupine.Unknown:
			t.Log("the search for an order took too long: not decided")
		case porcupine.Ok:
		}
	}
}

// linIn is a call, linOut its reply; nil: lost.
type linIn struct {
	kind  string // claim, rerun, other, recover, extend, save, finish, release, mark unknown, stuck
	token string
	fence int64
	short bool // the lease that is asked for
}

type linOut struct {
	won, lost bool
	state     idempotency.State // returned by a claim
	fence     int64             // likewise
	body      string            // likewise
}

// recording has the calls of all clients on one key.
type recording struct {
	s     *suite
	r     idempotency.Request
	op    string
	began time.Time

	mu     sync.Mutex
	ops    []porcupine.Operation
	leases []store.Lease
}

func (c *recording) client(t *testing.T, id int) {
	kinds := []string{
		"claim", "rerun", "rerun", "other", "recover", "extend", "save", "save", "finish", "release",
		"mark unknown", "stuck",
	}
	token := rand.Text()
	for i := range 10 {
		in := linIn{kind: kinds[mathrand.IntN(len(kinds))], short: mathrand.IntN(2) == 0, token: token}
		switch in.kind {
		case "claim", "rerun", "other", "recover":
		default:
			l, any := c.lease()
			if !any {
				in.kind = "rerun"
				break
			}
			in.token, in.fence = l.Token, l.Fence
		}
		limit := time.Duration(0)
		if mathrand.IntN(8) == 0 {
			limit = time.Duration(1+mathrand.IntN(1000)) * time.Microsecond
		}
		// A call that was lost belongs to a client that is never heard of again; its next claim with the same token is
		// the call sent again.
		if answered := c.call(t, id+10*i, in, limit); answered {
			token = rand.Text()
		}
	}
}

// lease returns a random one of the last leases.
func (c *recording) lease() (store.Lease, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.leases) == 0 {
		return store.Lease{}, false
	}
	return c.leases[max(0, len(c.leases)-1-mathrand.IntN(3))], true
}

// call makes a call and records it; with a limit, its reply may be lost.
func (c *recording) call(t *testing.T, id int, in linIn, limit time.Duration) (answered bool) {
	ctx, cancel := context.WithCancel(t.Context())
	if limit > 0 {
		ctx, cancel = context.WithTimeout(t.Context(), limit)
	}
	defer cancel()
	op := porcupine.Operation{ClientId: id, Input: in, Call: int64(time.Since(c.began))}
	out, l, err := c.do(ctx, id, in)
	op.Return = int64(time.Since(c.began))
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		op.Output = out
	case limit > 0:
		op.Return, op.Output = math.MaxInt64, linOut{state: "lost"}
	default:
		t.Errorf("%+v: %v", in, err)
	}
	c.ops = append(c.ops, op)
	if out.won {
		c.leases = append(c.leases, l)
	}
	return err == nil
}

func (c *recording) do(ctx context.Context, id int, in linIn) (linOut, store.Lease, error) {
	s, l, lease := c.s.client(id), store.Lease{Key: c.r.Key, Fence: in.fence, Token: in.token}, long
	if in.short {
		lease = c.s.tick()
	}
	var err error
	switch in.kind {
	case "claim", "rerun", "other":
		r := c.r
		if in.kind == "other" {
			r = other(r)
		}
		got, err := s.Claim(ctx, r, store.ClaimOptions{Token: in.token, Lease: lease, Rerun: in.kind == "rerun"})
		return linOut{
			won: got.Won, state: got.Record.State, fence: got.Record.Fence,
			body: string(got.Record.Result.Body),
		}, got.Lease, err
	case "recover":
		got, err := c.s.Recoverer.Recover(ctx, store.RecoverOptions{
			Limit: 1, Lease: lease, Token: in.token,
			Operations: []string{c.op},
		})
		if err != nil || len(got) == 0 {
			return linOut{}, l, err
		}
		return linOut{won: true, state: got[0].Record.State, fence: got[0].Lease.Fence}, got[0].Lease, nil
	case "extend":
		err = s.Extend(ctx, l, lease)
	case "save":
		err = s.Save(ctx, l, store.Progress{Stage: idempotency.ProviderConfirmed})
	case "finish":
		err = s.Finish(ctx, l, result(fmt.Sprint(in.token, in.fence)), idempotency.Retention{})
	case "release":
		err = s.Release(ctx, l)
	case "mark unknown":
		err = s.MarkUnknown(ctx, l, "", 0)
	case "stuck":
		err = c.s.Recoverer.Postpone(ctx, l, "", 0, true)
	}
	if errors.Is(err, store.ErrLeaseLost) {
		return linOut{lost: true}, l, nil
	}
	return linOut{}, l, err
}
