package keys_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/oklog/ulid/v2"
	"pgregory.net/rapid"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/keys"
)

func TestWindow(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	clock := func() time.Time { return now }
	plain, tight := keys.Window{Now: clock}, keys.Window{Age: time.Hour, Skew: -1, Now: clock}
	for _, c := range []struct {
		w    keys.Window
		at   time.Duration
		good bool
	}{
		{plain, 0, true},
		{plain, -48 * time.Hour, true},
		{plain, -48*time.Hour - time.Millisecond, false},
		{plain, 5 * time.Minute, true},
		{plain, 5*time.Minute + time.Millisecond, false},
		{tight, -time.Hour, true},
		{tight, -time.Hour - time.Millisecond, false},
		{tight, 0, true},
		{tight, time.Millisecond, false},
	} {
		v7 := event.IDAt(now.Add(c.at)).String()
		id := ulid.MustNew(ulid.Timestamp(now.Add(c.at)), ulid.DefaultEntropy()).String()
		for value, err := range map[string]error{v7: c.w.CheckV7(v7), id: c.w.CheckULID(id)} {
			if c.good != (err == nil) || !c.good && (!errors.Is(err, keys.ErrOutsideWindow) ||
				!errors.Is(err, idempotency.ErrInvalidKey)) {
				t.Errorf("%s, %v off: %v", value, c.at, err)
			}
		}
	}
	if err := (keys.Window{}).CheckV7(keys.NewV7()); err != nil {
		t.Error(err)
	}
	if err := keys.CheckV4(keys.NewV4()); err != nil {
		t.Error(err)
	}
}

// TestKeyFormats_CanonicalSpelling: another spelling of a key would be another key.
func TestKeyFormats_CanonicalSpelling(t *testing.T) {
	t.Parallel()
	v4, v7 := keys.NewV4(), keys.NewV7()
	id := ulid.Make().String()
	for _, bad := range []string{
		"", "x", strings.ToUpper(v4), "{" + v4 + "}", "urn:uuid:" + v4,
		strings.ReplaceAll(v4, "-", ""), v4 + " ", v7, id,
	} {
		if err := keys.CheckV4(bad); !errors.Is(err, idempotency.ErrInvalidKey) {
			t.Errorf("v4 %q: %v", bad, err)
		}
	}
	for _, bad := range []string{
		"", strings.ToUpper(v7), strings.ReplaceAll(v7, "-", ""), v4, id, uuid.Nil.String(),
		uuid.Max.String(),
	} {
		if err := (keys.Window{}).CheckV7(bad); !errors.Is(err, idempotency.ErrInvalidKey) ||
			errors.Is(err, keys.ErrOutsideWindow) {
			t.Errorf("v7 %q: %v", bad, err)
		}
	}
	for _, bad := range []string{
		"", strings.ToLower(id), id + "0", "8ZZZZZZZZZZZZZZZZZZZZZZZZZ",
		strings.Repeat("U", 26), v7,
	} {
		if err := (keys.Window{}).CheckULID(bad); !errors.Is(err, idempotency.ErrInvalidKey) ||
			errors.Is(err, keys.ErrOutsideWindow) {
			t.Errorf("ulid %q: %v", bad, err)
		}
	}
}

func TestIntent(t *testing.T) {
	t.Parallel()
	ns := uuid.MustParse("6f7c1c62-27b5-5f0a-9a0e-3b7f5d0c8e11")
	const pinned = "f7292ce1-f33d-51e1-a751-dfddc768a4fb"
	if got := keys.Intent(ns, 1, "invoice", "2026-07"); got != pinned {
		t.Errorf("%s: keys of earlier releases would not match", got)
	}
	seen := map[string]string{}
	for name, key := range map[string]string{
		"one": keys.Intent(ns, 1, "a", "b"), "joined": keys.Intent(ns, 1, "ab"),
		"cut elsewhere":   keys.Intent(ns, 1, "a:1:b"),
		"another version": keys.Intent(ns, 2, "a", "b"), "another namespace": keys.Intent(uuid.NameSpaceURL, 1, "a",
			"b"),
		"none": keys.Intent(ns, 1), "empty": keys.Intent(ns, 1, ""), "two empty": keys.Intent(ns, 1, "", ""),
	} {
		if other, twice := seen[key]; twice {
			t.Errorf("%s and %s have one key", name, other)
		}
		seen[key] = name
	}
}

// TestWatermark_OutOfOrder: 101 finishes before 100; 100 must not count as finished.
func TestWatermark_OutOfOrder(t *testing.T) {
	t.Parallel()
	w := keys.Watermark{Low: 99}
	if added, err := w.Add(101, 10); !added || err != nil {
		t.Fatal(added, err)
	}
	if w.Has(100) || !w.Has(101) || w.Low != 99 {
		t.Fatalf("%+v: 100 is dropped", w)
	}
	if added, err := w.Add(101, 10); added || err != nil {
		t.Fatal("101 twice", err)
	}
	if added, err := w.Add(100, 10); !added || err != nil {
		t.Fatal(added, err)
	}
	if w.Low != 101 || len(w.Above) != 0 {
		t.Fatalf("%+v", w)
	}
	if _, err := w.Add(112, 10); !errors.Is(err, keys.ErrTooFarAhead) {
		t.Fatal(err)
	}
	far := keys.Watermark{Low: -1 << 63}
	if _, err := far.Add(1<<63-1, 1<<62); !errors.Is(err, keys.ErrTooFarAhead) {
		t.Fatal(err)
	}
}

// TestWatermark_IsASet: numbers in any order; it has the same numbers as a set.
func TestWatermark_IsASet(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var w keys.Watermark
		set := map[int64]bool{}
		for range rapid.IntRange(1, 40).Draw(t, "numbers") {
			n := rapid.Int64Range(1, 20).Draw(t, "n")
			before := w
			oldAbove := append([]int64(nil), w.Above...)
			added, err := w.Add(n, 15)
			if err != nil {
				if n-before.Low <= 15 || set[n] {
					t.Fatalf("%d to %+v: %v", n, before, err)
				}
				continue
			}
			if added == set[n] {
				t.Fatalf("%d to %+v: added %v", n, before, added)
			}
			set[n] = true
			for i := range oldAbove {
				if before.Above[i] != oldAbove[i] {
					t.Fatalf("a copy changed: %v, was %v", before.Above, oldAbove)
				}
			}
			for m := int64(1); m <= 21; m++ {
				if w.Has(m) != set[m] {
					t.Fatalf("%+v has %d: %v", w, m, w.Has(m))
				}
			}
		}
		text, _ := json.Marshal(w)
		var back keys.Watermark
		if err := json.Unmarshal(text, &back); err != nil || back.Low != w.Low || len(back.Above) != len(w.Above) {
			t.Fatalf("%s became %+v, %v", text, back, err)
		}
	})
}

// blocks is a Blocks in memory whose replies can be lost.
type blocks struct {
	mu   sync.Mutex
	next int64
	lose int
}

var errLost = errors.New("the reply was lost")

func (b *blocks) NextBlock(_ context.Context, _ string, size int64) (int64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	first := b.next + 1
	b.next += size
	if b.lose > 0 {
		b.lose--
		return 0, errLost
	}
	return first, nil
}

func TestHiLo_Unique(t *testing.T) {
	t.Parallel()
	b := &blocks{}
	var mu sync.Mutex
	seen := map[int64]bool{}
	var wg sync.WaitGroup
	for range 3 {
		h, err := keys.NewHiLo(b, "s", 7)
		if err != nil {
			t.Fatal(err)
		}
		for range 4 {
			wg.Go(func() {
				for range 25 {
					n, err := h.Next(t.Context())
					mu.Lock()
					if err != nil || seen[n] || n < 1 {
						t.Errorf("%d twice or wrong, %v", n, err)
					}
					seen[n] = true
					mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
	// 100 numbers for each HiLo are 15 blocks of 7.
	if b.next != 3*15*7 {
		t.Errorf("%d were reserved", b.next)
	}
}

func TestHiLo_LostReplyWastesItsBlock(t *testing.T) {
	t.Parallel()
	b := &blocks{lose: 1}
	h, err := keys.NewHiLo(b, "s", 10)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Next(t.Context()); !errors.Is(err, errLost) {
		t.Fatal(err)
	}
	if n, err := h.Next(t.Context()); err != nil || n != 11 {
		t.Fatal(n, err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		_, _ = h.Next(cancelled)
	}
	for why, bad := range map[string]func() (*keys.HiLo, error){
		"no blocks": func() (*keys.HiLo, error) { return keys.NewHiLo(nil, "s", 1) },
		"no name":   func() (*keys.HiLo, error) { return keys.NewHiLo(b, "", 1) },
		"no size":   func() (*keys.HiLo, error) { return keys.NewHiLo(b, "s", 0) },
	} {
		if _, err := bad(); err == nil {
			t.Errorf("%s: no error", why)
		}
	}
}

// FuzzKey: a key is valid exactly if each part is 1 to 255 printable bytes (the tenant may be empty); the checks of
// formats never panic, and accept no invalid key.
func FuzzKey(f *testing.F) {
	f.Add("", "payment.create", "0199a4c2-7d1c-7000-8000-0000000000ab")
	f.Add("t", "o", "01J1Z8XW9QK5V3C7M2N4P6R8T0")
	f.Add("\x00", " ", "é")
	f.Fuzz(func(t *testing.T, tenant, operation, value string) {
		good := func(s string) bool {
			return len(s) <= 255 && strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) < 0
		}
		want := good(tenant) && good(operation) && good(value) && operation != "" && value != ""
		err := idempotency.Key{Tenant: tenant, Operation: operation, Value: value}.Check()
		if (err == nil) != want || err != nil && !errors.Is(err, idempotency.ErrInvalidKey) {
			t.Fatalf("%q %q %q: %v", tenant, operation, value, err)
		}
		w := keys.Window{}
		for _, err := range []error{keys.CheckV4(value), w.CheckV7(value), w.CheckULID(value)} {
			if err == nil && (!good(value) || value == "") {
				t.Fatalf("an invalid key is accepted: %q", value)
			}
			if err != nil && !errors.Is(err, idempotency.ErrInvalidKey) {
				t.Fatalf("%q: %v", value, err)
			}
		}
	})
}
