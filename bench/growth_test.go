package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"
)

// TestHistoryDay: the stream for COPY has a header, every row once with an id of the day, in order, and a trailer,
// whatever the size of the reads.
func TestHistoryDay(t *testing.T) {
	t.Parallel()
	const start, rows, rowSize = int64(1_760_000_000_000) / dayMillis * dayMillis, 1000, 2 + 4 + 6 + 4 + 16 + 4 + 8
	for _, at := range []int{rowSize * 3, 64 << 10} {
		d := &historyDay{start: start, rows: rows, keep: 100, rng: rand.NewChaCha8([32]byte{})}
		all, err := io.ReadAll(limited{d, at})
		if err != nil {
			t.Fatal(err)
		}
		if want := 19 + rows*rowSize + 2; len(all) != want || !bytes.HasPrefix(all, []byte("PGCOPY\n\xff\r\n\x00")) ||
			!bytes.HasSuffix(all, []byte{0xff, 0xff}) {
			t.Fatalf("%d bytes, want %d, between a header and a trailer", len(all), want)
		}
		var last []byte
		for i := range rows {
			row := all[19+i*rowSize:][:rowSize]
			id := row[2+4+6+4:][:16]
			ms := int64(binary.BigEndian.Uint64(append([]byte{0, 0}, id[:6]...)))
			if ms < start || ms >= start+dayMillis || id[6]>>4 != 7 || id[8]>>6 != 2 ||
				bytes.Compare(last, id[:6]) > 0 {
				t.Fatalf("row %d has the id %x: no UUIDv7 of the day, or before the one before it", i, id)
			}
			if at := int64(binary.BigEndian.Uint64(row[rowSize-8:])); at/1000+946_684_800_000 != ms {
				t.Fatalf("row %d was processed %d ms after its id was made", i, at/1000+946_684_800_000-ms)
			}
			if k := i - rows/2; k >= 0 && k < len(d.kept) && !bytes.Equal(d.kept[k][:], id) {
				t.Fatalf("the id kept for row %d is %x, not %x", i, d.kept[k], id)
			}
			last = id[:6]
		}
		if len(d.kept) != 100 {
			t.Fatalf("%d ids are kept, want 100", len(d.kept))
		}
	}
}

// limited bounds the bytes of a read.
type limited struct {
	io.Reader
	most int
}

func (l limited) Read(p []byte) (int, error) { return l.Reader.Read(p[:min(len(p), l.most)]) }

// TestBetween: slices that overlap the time span count as a whole.
func TestBetween(t *testing.T) {
	t.Parallel()
	at := func(tenths int) time.Time { return time.Unix(0, 0).Add(time.Duration(tenths) * 100 * time.Millisecond) }
	all := []slice{{at(0), 0}, {at(1), 100}, {at(2), 300}, {at(3), 310}, {at(4), 500}}
	f, worst := between(all, at(1).Add(time.Millisecond), at(2).Add(time.Millisecond))
	if f.Events != 210 || f.Rate < 1049 || f.Rate > 1051 || worst < 99 || worst > 101 {
		t.Errorf("%d events, %.0f/s, at worst %.0f/s; want 210, 1050, 100", f.Events, f.Rate, worst)
	}
	if f, _ := between(nil, at(0), at(9)); f.Events != 0 || f.Rate != 0 {
		t.Errorf("of no slices: %+v", f)
	}
}

func TestTenths(t *testing.T) {
	t.Parallel()
	got := tenths([]float64{2, 3, 5, 9}, 10)
	if len(got) != 3 || got[0].Rate != 5 || got[1].Rate != 10 || got[2].Rate != 2.5 {
		t.Errorf("got %+v, want 5, 10 and 2.5 a second", got)
	}
	if got := tenths([]float64{1}, 10); got != nil {
		t.Errorf("of one mark: %+v", got)
	}
}

func TestInParallel(t *testing.T) {
	t.Parallel()
	var sum atomic.Int64
	err := inParallel(t.Context(), 3, 1005, 10, func(_ context.Context, n int) error {
		if n > 10 {
			t.Errorf("a part of %d", n)
		}
		sum.Add(int64(n))
		return nil
	})
	if err != nil || sum.Load() != 1005 {
		t.Errorf("%d of 1005 were done: %v", sum.Load(), err)
	}
	calls := 0
	err = inParallel(t.Context(), 1, 1005, 10, func(context.Context, int) error { calls++; return iotest.ErrTimeout })
	if !errors.Is(err, iotest.ErrTimeout) || calls != 1 {
		t.Errorf("%d calls and %v, want one and its error", calls, err)
	}
}

// TestPeaks: the largest process of a kind counts, including the warm-up.
func TestPeaks(t *testing.T) {
	t.Parallel()
	r := report{out: io.Discard}
	for i, mib := range []int64{250, 100, 90} {
		r.add(figure{Case: "c", Name: "relay", Turn: i, PeakKiB: mib << 10})
	}
	r.add(figure{Case: "c", Name: "publish", Turn: 1, PeakKiB: 900 << 10})
	r.peaks("c", "relay", "relay")
	r.peaks("c", "worker", "worker")
	if r.goals[0].Median != 250 || r.goals[0].Met || r.goals[1].Met {
		t.Errorf("got %+v: want 250 MiB, not met, and nothing measured not met either", r.goals)
	}
}

// TestPayment: a payment is JSON of the common size, wherever its filler is cut.
func TestPayment(t *testing.T) {
	t.Parallel()
	filler := payloads(100)
	for i := range 10_000 {
		e := payment("payments", filler[i%len(filler)])
		if len(e.Payload) != payloadSize || !json.Valid(e.Payload) {
			t.Fatalf("%d bytes, want %d of JSON: %s", len(e.Payload), payloadSize, e.Payload)
		}
	}
}
