package inbox

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectonce/effectonce/internal/sleep"
)

// TestP9_5_HangingRunDelaysNoOther: a run that must be alone waits for a hanging run. Other runs wait for neither.
func TestP9_5_HangingRunDelaysNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewGate()
		leave, err := g.enter(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		alone := make(chan struct{})
		go func() {
			defer close(alone)
			leave, err := g.enter(t.Context(), true)
			if err != nil {
				t.Error(err)
				return
			}
			leave()
		}()
		synctest.Wait() // the run waits
		for range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			leave, err := g.enter(ctx, false)
			cancel()
			if err != nil {
				t.Error("a run beside others waits for one that hangs:", err)
				break
			}
			select {
			case <-alone:
				t.Error("a run beside one that must be alone")
			case <-time.After(10 * time.Second):
			}
			leave()
		}
		leave()
		<-alone
	})
}

// TestP9_5_HangingRunIsNotAloneForLong: the run that is alone hangs, of a released or a counted event. Other runs wait
// for it only for a while.
func TestP9_5_HangingRunIsNotAloneForLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewGate()
		hangs, err := g.enter(t.Context(), true)
		if err != nil {
			t.Fatal(err)
		}
		within, cancel := context.WithTimeout(t.Context(), aloneFor-time.Second)
		if _, err := g.enter(within, false); err == nil {
			t.Error("a run beside one that is alone")
		}
		cancel()
		within, cancel = context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		beside, err := g.enter(within, false)
		if err != nil {
			t.Fatal("a run waits for one that hangs alone:", err)
		}
		hangs()
		beside()
		for range 2 { // no slot is lost or returned twice
			leave, err := g.enter(within, true)
			if err != nil {
				t.Fatal("a run cannot be alone although no other runs:", err)
			}
			leave()
		}
	})
}

// TestP9_5_CountedRunIsNotStarved: every other run takes longer than the counted run waits at first.
func TestP9_5_CountedRunIsNotStarved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewGate()
		ctx, stop := context.WithCancel(t.Context())
		for i := range 8 {
			go func() {
				for {
					leave, err := g.enter(ctx, false)
					if err != nil {
						return
					}
					_ = sleep.For(ctx, 5*time.Second+time.Duration(i)*time.Second/3)
					leave()
				}
			}()
		}
		synctest.Wait()
		within, cancel := context.WithTimeout(ctx, time.Hour)
		defer cancel()
		leave, err := g.enter(within, true)
		if err != nil {
			t.Error("the counted run never began:", err)
		} else {
			leave()
		}
		stop()
	})
}
