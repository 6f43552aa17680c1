package idempotencytest

import (
	"crypto/rand"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
)

// crowds are the tests with many concurrent callers.
func crowds() []testCase {
	return []testCase{
		{"Crowd_100Callers_OneEffect", false, crowdOneEffect},
		{"Crowd_TwoCommandsUnderOneKey", false, crowdTwoCommands},
		{"Crowd_OwnersCrash_RecoveryFinishes", false, crowdOwnersCrash},
	}
}

// provider is a service without idempotency.
type provider struct {
	mu     sync.Mutex
	ledger map[string]int
}

// charge books each time.
func (p *provider) charge(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ledger == nil {
		p.ledger = map[string]int{}
	}
	p.ledger[key]++
}

// booked returns the number of charges, for recovery.
func (p *provider) booked(key string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ledger[key]
}

// crowdOneEffect: a hundred callers with one key and command: the provider books once, and all get the same answer.
func crowdOneEffect(t *testing.T, s *suite) {
	const callers = 100
	r := s.fresh()
	var at provider
	answers := make([]idempotency.Result, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			s, token := s.client(i), rand.Text()
			poll := time.NewTicker(5 * time.Millisecond)
			defer poll.Stop()
			for {
				got, err := s.Claim(t.Context(), r, store.ClaimOptions{Token: token, Lease: long})
				switch {
				case err != nil:
					t.Errorf("claim: %v", err)
					return
				case got.Won:
					at.charge(r.Key.Value)
					if err := s.Finish(t.Context(), got.Lease, result(fmt.Sprint("by caller ", i)),
						idempotency.Retention{}); err != nil {
						t.Errorf("finish: %v", err)
						return
					}
				case got.Record.State == idempotency.Completed:
					answers[i] = got.Record.Result
					return
				}
				select {
				case <-poll.C:
				case <-t.Context().Done():
					return
				}
			}
		})
	}
	wg.Wait()
	if n := at.booked(r.Key.Value); n != 1 {
		t.Errorf("the provider booked %d times", n)
	}
	for i := range answers {
		if !sameResult(answers[i], answers[0]) || !answers[i].At.Equal(answers[0].At) {
			t.Errorf("caller %d got %+v, caller 0 %+v", i, answers[i], answers[0])
		}
	}
}

// crowdTwoCommands: two commands race for one key: one is done, once, and no caller of the other gets its answer.
func crowdTwoCommands(t *testing.T, s *suite) {
	for range 5 {
		r := s.fresh()
		var wg sync.WaitGroup
		var mu sync.Mutex
		var won []idempotency.Fingerprint
		for i := range 10 {
			mine := r
			if i%2 == 1 {
				mine = other(r)
			}
			wg.Go(func() {
				got, err := s.client(i).Claim(t.Context(), mine, store.ClaimOptions{
					Token: rand.Text(), Lease: long,
					Rerun: true,
				})
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Errorf("claim: %v", err)
				}
				if got.Won {
					won = append(won, mine.Fingerprint)
				}
			})
		}
		wg.Wait()
		if len(won) != 1 || s.get(t, r.Key).Fingerprint != won[0] {
			t.Fatalf("won by %d; the record: %+v", len(won), s.get(t, r.Key))
		}
	}
}

// crowdOwnersCrash: every owner crashes, before or after the provider booked. Callers and recoverers continue until the
// work is done; the recoverer asks the provider, and charges only if it has not booked.
func crowdOwnersCrash(t *testing.T, s *suite) {
	var at provider
	var all []idempotency.Request
	for i := range 12 {
		r := s.fresh()
		got := s.claim(t, r, rand.Text(), s.tick(), false)
		if !got.Won {
			t.Fatalf("%+v", got)
		}
		if i%2 == 0 {
			at.charge(r.Key.Value)
		}
		all = append(all, r)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 3 { // callers that try again: none may win
		wg.Go(func() {
			again := time.NewTicker(5 * time.Millisecond)
			defer again.Stop()
			for {
				for _, r := range all {
					if got, err := s.client(i).Claim(t.Context(), r,
						store.ClaimOptions{Token: rand.Text(), Lease: s.tick()}); err != nil || got.Won {
						t.Errorf("%+v, %v", got, err)
						return
					}
				}
				select {
				case <-stop:
					return
				case <-again.C:
				}
			}
		})
	}
	finished := 0
	await(t, "all to be finished", func() bool {
		got, err := s.Recoverer.Recover(t.Context(), store.RecoverOptions{
			Limit: 5, Lease: long, Token: rand.Text(),
			Operations: []string{s.op},
		})
		if err != nil {
			t.Errorf("recover: %v", err)
		}
		for _, c := range got {
			if at.booked(c.Record.Key.Value) == 0 {
				at.charge(c.Record.Key.Value)
			}
			if err := s.Store.Finish(t.Context(), c.Lease, result("recovered"), idempotency.Retention{}); err != nil {
				t.Errorf("finish: %v", err)
			}
			finished++
		}
		return finished == len(all) || t.Failed()
	})
	close(stop)
	wg.Wait()
	for _, r := range all {
		if n := at.booked(r.Key.Value); n != 1 {
			t.Errorf("the provider booked %d times", n)
		}
		wantState(t, s.get(t, r.Key), idempotency.Completed)
	}
}
