package soak

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/verify/history"
)

// TestSoak is the run. With the seed in its log and the same settings, the same faults are made at the same times.
func TestSoak(t *testing.T) {
	if os.Getenv(envDuration) == "" {
		t.Skip("takes minutes: make soak")
	}
	kafkatest.RequireReal(t)
	s := readSettings(t)
	faults := plan(s, kinds())
	var text strings.Builder
	table(&text, faults)
	t.Logf("%s=%d %s=%v %s=%s, %d brokers, %d events/s, %d faults:\n%s", envSeed, s.seed, envDuration, s.duration,
		envDedup, s.dedup, s.brokers, s.rate, len(faults), text.String())
	x := newTestbed(t, s, faults)
	x.addProcesses()
	audits := x.audit()
	made := x.make(faults)
	drain := x.drain()
	audits()
	x.judge(made, drain)
}

// result is the result of the schedule.
type result struct {
	mu           sync.Mutex
	done         map[string]int
	failedBegins map[string]int // faults whose begin failed
	failed       []string       // faults that were not made, with the reason
	notUndone    []string       // faults that could not be undone
}

// make makes the faults of each track one after the other, and returns when the time is over and all are undone.
func (x *testbed) make(faults []fault) *result {
	m, byName := &result{done: map[string]int{}, failedBegins: map[string]int{}}, map[string]kind{}
	for _, k := range kinds() {
		byName[k.name] = k
	}
	began := time.Now()
	var all sync.WaitGroup
	for _, track := range tracks {
		all.Go(func() {
			for _, f := range faults {
				k := byName[f.kind]
				if k.track != track.name {
					continue
				}
				if time.Since(began) > x.duration { // earlier faults of the track took longer than planned
					m.leave(f, errors.New("the time was over"))
					continue
				}
				await(began.Add(f.at))
				m.one(x, k, f)
			}
		})
	}
	all.Wait()
	await(began.Add(x.duration))
	return m
}

// one makes a fault and undoes it.
func (m *result) one(x *testbed, k kind, f fault) {
	op := x.note(history.Entry{Kind: history.KindFault, Verb: f.kind, Detail: fmt.Sprintf("%s for %v", f.target,
		f.lasts)})
	undo, err := k.begin(x, f)
	if err == nil {
		await(time.Now().Add(f.lasts))
	}
	if undo != nil { // also of a fault that could not be made as a whole
		if err := undo(); err != nil {
			m.mu.Lock()
			m.notUndone = append(m.notUndone, fmt.Sprintf("%s of %s: %v", f.kind, f.target, err))
			m.mu.Unlock()
		}
	}
	ended := history.Entry{Kind: history.KindFaultEnded, Op: op, Verb: f.kind, Detail: f.target, Outcome: history.OK}
	if err == nil {
		m.mu.Lock()
		m.done[f.kind]++
		m.mu.Unlock()
	} else {
		m.leave(f, err)
		m.mu.Lock()
		m.failedBegins[f.kind]++
		m.mu.Unlock()
		ended.Outcome, ended.Err = history.Failed, err.Error()
	}
	x.note(ended)
}

// leave notes a fault that was not made.
func (m *result) leave(f fault, why error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failed = append(m.failed, fmt.Sprintf("%s of %s at %v: %v", f.kind, f.target, f.at, why))
}

func await(at time.Time) {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	<-timer.C
}
