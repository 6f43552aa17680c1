package pgstore_test

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/effectonce/effectonce/idempotency/keys"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// TestBlocks_Unique: concurrent callers of several processes, with different sizes.
func TestBlocks_Unique(t *testing.T) {
	t.Parallel()
	s := newTestService(t, pgstore.Config{})
	const each = 100
	var mu sync.Mutex
	var all []int64
	var wg sync.WaitGroup
	for _, size := range []int64{1, 7, 50, 1000} {
		numbers, err := keys.NewHiLo(s.store, "invoice", size)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			wg.Go(func() {
				for range each {
					n, err := numbers.Next(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					all = append(all, n)
					mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
	slices.Sort(all)
	if len(all) != 12*each || len(slices.Compact(all)) != 12*each || all[0] != 1 {
		t.Errorf("%d numbers from %d on, some twice", len(all), all[0])
	}
	if n, err := s.open(s.Pool, pgstore.Config{Schema: s.Schema}).NextBlock(t.Context(), "refund", 10); n != 1 ||
		err != nil {
		t.Errorf("another name begins with %d, %v", n, err)
	}
	for name, size := range map[string]int64{"": 1, "a": 0} {
		if n, err := s.store.NextBlock(t.Context(), name, size); err == nil {
			t.Errorf("%d numbers of %q: %d", size, name, n)
		}
	}
}

// TestBlocks_LostReplyIsAGap: the numbers of a block whose reply was lost are never returned.
func TestBlocks_LostReplyIsAGap(t *testing.T) {
	t.Parallel()
	s := newTestService(t, pgstore.Config{})
	store, proxy := s.storeThroughProxy(pgstore.Config{})
	next := func(want int64) {
		t.Helper()
		if n, err := store.NextBlock(t.Context(), "invoice", 10); n != want || err != nil {
			t.Errorf("got %d, %v, want %d", n, err, want)
		}
	}
	next(1)
	proxy.On(func(sql string) bool { return strings.Contains(sql, "reserve a block") }, 0, pgtest.DropReply)
	if n, err := store.NextBlock(t.Context(), "invoice", 10); err == nil {
		t.Errorf("got %d without a reply", n)
	}
	next(21)
}
