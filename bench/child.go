package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
)

// childArg makes this program read a job from standard input, run it, and write the answer to standard output.
const childArg = "child"

// job is what a child does: kind "relay" drains the outbox, "publish" gives the same number of events to the publisher
// with no database behind it, "run" relays until it is told to stop, and "idle" relays nothing.
// "stage" runs steps of the chain in one process.
type job struct {
	Kind        string
	URL         string
	Brokers     []string
	Topic       string
	Events      int
	Pumps       int // of the relay
	ClaimEvents int
	Compression string
	Profile     string
	Stage       stageJob
	Lease       time.Duration // run: 0 is the relay's default
	WAL         bool          // run, idle: events are read from the WAL
	IdleAfter   time.Duration // idle: 0 is the relay's default
	Length      time.Duration // idle: how long the cost is measured
	Answer      string        // the file to answer in; empty: the standard output
}

func (j *job) source() relay.Source {
	if j.WAL {
		return relay.SourceWAL
	}
	return relay.SourceTable
}

// answer is the measurement of a child. Claim, publish and settle are sums over the pumps.
type answer struct {
	Seconds                float64
	CPU                    float64 // seconds, of the child
	PeakKiB                int64   // VmHWM; 0 where there is no /proc
	Claims                 int
	Claim, Publish, Settle float64 // seconds
	SentBytes              int64   // of record batches on the wire
	Stage                  stageAnswer
	Settled                int        // run: events
	LastSettle             time.Time  // run
	Lanes                  []laneTurn // run: by lane
	Costs                  []cost     // idle: while awake, and while idle
}

// child runs a job in a new process.
func child(ctx context.Context, j job) (answer, error) {
	var a answer
	self, err := os.Executable()
	if err != nil {
		return a, err
	}
	in, err := json.Marshal(j)
	if err != nil {
		return a, err
	}
	cmd := exec.CommandContext(ctx, self, childArg)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return a, fmt.Errorf("the %s process: %w", j.Kind, err)
	}
	return a, json.Unmarshal(out, &a)
}

func childMain(ctx context.Context, in io.Reader, out io.Writer) error {
	var j job
	if err := json.NewDecoder(in).Decode(&j); err != nil {
		return err
	}
	work := drain
	switch j.Kind {
	case "publish":
		work = publishAll
	case "stage":
		work = stageChild
	case "run":
		work = runChild
	case "idle":
		work = idleChild
	}
	if j.Profile != "" {
		f, err := os.Create(j.Profile)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	a, err := work(ctx, j)
	if err != nil {
		return err
	}
	a.PeakKiB, a.CPU = peakOf("self"), selfCPU()
	if j.Answer != "" {
		text, err := json.Marshal(a)
		return errors.Join(err, os.WriteFile(j.Answer, text, 0o600))
	}
	return json.NewEncoder(out).Encode(a)
}

// drain runs a relay until it has settled all events. The time is from Run to the last settle, including the join, the
// take-over of the lanes and the first connections.
func drain(ctx context.Context, j job) (a answer, err error) {
	var sent atomic.Int64
	pool, to, free, err := relayEnds(ctx, j, &sent)
	if err != nil {
		return a, err
	}
	defer free()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	settled, started := 0, time.Now()
	r, err := relay.New(pool, to, relay.Config{
		Schema: "public", Pumps: j.Pumps, ClaimEvents: j.ClaimEvents,
		Logger: quiet(), Observer: relay.Observer{
			Claimed: func(_, _ int, took time.Duration) {
				mu.Lock()
				defer mu.Unlock()
				a.Claims++
				a.Claim += took.Seconds()
			},
			Published: func(_, _ int, took time.Duration) {
				mu.Lock()
				defer mu.Unlock()
				a.Publish += took.Seconds()
			},
			Settled: func(n, _ int, took time.Duration) {
				mu.Lock()
				defer mu.Unlock()
				a.Settle += took.Seconds()
				settled += n
				if settled >= j.Events && a.Seconds == 0 {
					a.Seconds = since(started)
					cancel()
				}
			},
		},
	})
	if err != nil {
		return a, err
	}
	if err := r.Run(ctx); err != nil {
		return a, err
	}
	if settled < j.Events {
		return a, fmt.Errorf("stopped after %d of %d events: %w", settled, j.Events, ctx.Err())
	}
	a.SentBytes = sent.Load()
	return a, nil
}

// publishAll calls Publish from one goroutine per pump, with calls of the size of a claim.
func publishAll(ctx context.Context, j job) (a answer, err error) {
	const perCall = 4000
	var sent atomic.Int64
	to, err := newPublisher(j, &sent)
	if err != nil {
		return a, err
	}
	defer func() { _ = to.Close() }()
	callers := j.Pumps
	if callers == 0 {
		callers = 2
	}
	sets := make([][]event.Event, callers)
	payload := payloads(distinct)
	for c := range sets {
		sets[c] = events(j.Topic, perCall, payload)
		for i := range sets[c] {
			// What the relay adds, and so what travels.
			sets[c][i].Time = time.Now()
			sets[c][i].Position = event.Position{
				Lane:  int16(i % relay.Lanes),
				Epoch: "0198b2f0-5a3e-7c11-9d3e-2f1f6a7b8c9d.1", Seq: int64(i + 1),
			}
		}
	}
	var left atomic.Int64
	left.Store(int64(j.Events))
	failed := make(chan error, callers)
	started := time.Now()
	var wg sync.WaitGroup
	for _, set := range sets {
		wg.Go(func() {
			for {
				n := int(min(perCall, left.Add(-perCall)+perCall))
				if n <= 0 {
					return
				}
				for _, err := range to.Publish(ctx, set[:n]) {
					if err != nil {
						failed <- err
						return
					}
				}
			}
		})
	}
	wg.Wait()
	a.Seconds, a.SentBytes = since(started), sent.Load()
	select {
	case err = <-failed:
	default:
	}
	return a, err
}

// relayEnds returns a relay's database and publisher. free closes both.
func relayEnds(ctx context.Context, j job, sent *atomic.Int64) (from *pgxpool.Pool, to closingPublisher, free func(),
	err error,
) {
	if to, err = newPublisher(j, sent); err != nil {
		return nil, nil, nil, err
	}
	if from, err = pgxpool.New(ctx, j.URL); err != nil {
		_ = to.Close()
		return nil, nil, nil, err
	}
	return from, to, func() { from.Close(); _ = to.Close() }, nil
}

// closingPublisher is a relay's publisher.
type closingPublisher interface {
	relay.Publisher
	relay.Router
	Close() error
}

func newPublisher(j job, sent *atomic.Int64) (closingPublisher, error) {
	return publisher.NewKafka(j.Brokers, publisher.Config{
		Compression: j.Compression, Logger: quiet(),
		Observer: publisher.Observer{
			Produced: func(_ string, _, _, bytes int, _ time.Duration) {
				if sent != nil {
					sent.Add(int64(bytes))
				}
			},
		},
	})
}

func quiet() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// peakOf returns the peak resident size of a process; pid may be "self".
func peakOf(pid string) (kib int64) {
	status, _ := os.ReadFile("/proc/" + pid + "/status")
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, _ = strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
		}
	}
	return kib
}

func selfCPU() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}
