package soak

import (
	"errors"
	"slices"
	"syscall"
	"time"
)

var errNobody = errors.New("the process was not running")

// kinds returns all kinds of faults.
func kinds() []kind {
	return slices.Concat(processKinds(), networkKinds(), postgresKinds(), sessionKinds(), kafkaKinds(),
		outsideKinds(), restoreKinds())
}

func allProcesses(settings) []string {
	return slices.Concat(producers, relays, workers, []string{operatorProcess, maintainer})
}

// importantProcesses are the processes whose death matters most.
func importantProcesses(s settings) []string {
	return slices.Concat(relays, workers, relays, workers, producers[:1], s.tenantRelays(), s.tenantRelays())
}

func processKinds() []kind {
	const track = "processes"
	nothing := func() error { return nil }
	return []kind{
		{
			name: "kill", track: track, shortest: 500 * time.Millisecond, longest: 2 * time.Second,
			targets: importantProcesses,
			begin: func(s *testbed, f fault) (func() error, error) {
				if !s.supervisor.signal(f.target, syscall.SIGKILL) {
					return nil, errNobody
				}
				return nothing, nil
			},
		},
		{
			name: "kill-any", track: track, shortest: 500 * time.Millisecond, longest: time.Second,
			targets: allProcesses,
			begin: func(s *testbed, f fault) (func() error, error) {
				if !s.supervisor.signal(f.target, syscall.SIGKILL) {
					return nil, errNobody
				}
				return nothing, nil
			},
		},
		// Longer than the lease and the session: a process that continues is a zombie.
		{
			name: "pause", track: track, shortest: 4 * time.Second, longest: 12 * time.Second,
			targets: importantProcesses,
			begin: func(s *testbed, f fault) (func() error, error) {
				if !s.supervisor.signal(f.target, syscall.SIGSTOP) {
					return nil, errNobody
				}
				return func() error { s.supervisor.signal(f.target, syscall.SIGCONT); return nil }, nil
			},
		},
		// Shorter than the lease and the session.
		{
			name: "stutter", track: track, shortest: 200 * time.Millisecond, longest: 1500 * time.Millisecond,
			targets: importantProcesses, begin: func(s *testbed, f fault) (func() error, error) {
				if !s.supervisor.signal(f.target, syscall.SIGSTOP) {
					return nil, errNobody
				}
				return func() error { s.supervisor.signal(f.target, syscall.SIGCONT); return nil }, nil
			},
		},
		{
			name: "deploy", track: track, shortest: time.Second, longest: 3 * time.Second,
			targets: allProcesses,
			begin: func(s *testbed, f fault) (func() error, error) {
				s.supervisor.want(f.target, false)
				return func() error { s.supervisor.want(f.target, true); return nil }, nil
			},
		},
		// Each life takes lanes and does not free them.
		{
			name: "crash-loop", track: track, checksEffect: true, shortest: 10 * time.Second, longest: 20 * time.Second,
			targets: func(settings) []string { return relays }, begin: crashLoop,
		},
		// One worker does not answer the group's call to join, so that the others wait in theirs when one of them is
		// told to end.
		{
			name: "stop-in-join", track: track, checksEffect: true, shortest: 2 * time.Second, longest: 5 * time.Second,
			targets: func(settings) []string {
				return append(slices.Clone(workers), spareWorker)
			}, begin: stopInJoin,
		},
		{
			name: "rebalances", track: track, shortest: 6 * time.Second, longest: 14 * time.Second,
			targets: func(settings) []string { return []string{"workers"} }, begin: storm,
		},
	}
}

// storm lets workers join and leave every two seconds, so that the group rebalances nearly all the time.
func storm(s *testbed, f fault) (func() error, error) {
	draw, all := f.draw(), append(slices.Clone(workers), spareWorker)
	away := spareWorker
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(2 * time.Second)
		defer tick.Stop()
		for {
			next := all[draw.IntN(len(all))]
			if next != away {
				s.supervisor.want(away, true)
				s.supervisor.want(next, false)
				away = next
			}
			select {
			case <-tick.C:
			case <-end:
				return
			}
		}
	}()
	return func() error {
		close(end)
		<-ended
		for _, w := range workers {
			s.supervisor.want(w, true)
		}
		s.supervisor.want(spareWorker, false)
		return nil
	}, nil
}

// crashLoop kills a relay again and again, some time after each start. Events in lanes of other relays must not wait.
func crashLoop(s *testbed, f fault) (func() error, error) {
	if !s.supervisor.signal(f.target, syscall.SIGKILL) {
		return nil, errNobody
	}
	draw, deaths := f.draw(), 1
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			life := time.NewTimer(between(draw, 500*time.Millisecond, 4*time.Second))
			select {
			case <-life.C:
				if s.supervisor.signal(f.target, syscall.SIGKILL) {
					deaths++
				}
			case <-end:
				life.Stop()
				return
			}
		}
	}()
	var late outboxMark
	timer := time.AfterFunc(max(0, f.lasts-publishLimit), func() { late.set(s) })
	return func() error {
		timer.Stop()
		close(end)
		<-ended
		if deaths >= 3 {
			s.tookEffect(f.kind)
			s.published(f, &late)
		}
		return nil
	}, nil
}

// stopInJoin lets the group wait for a paused worker, and stops another worker meanwhile. After its exit the group must
// not have it as a member.
func stopInJoin(s *testbed, f fault) (func() error, error) {
	still := workers[0]
	if f.target == still {
		still = workers[1]
	}
	if !s.supervisor.signal(still, syscall.SIGSTOP) {
		return nil, errNobody
	}
	s.supervisor.want(spareWorker, true)
	undo := func() error {
		s.supervisor.signal(still, syscall.SIGCONT)
		s.supervisor.want(f.target, f.target != spareWorker)
		s.supervisor.want(spareWorker, false)
		return nil
	}
	limit := time.Now().Add(6 * time.Second)
	for s.groupState() != joining {
		if time.Now().After(limit) {
			return nil, errors.Join(errors.New("the group did not start a rebalance"), undo())
		}
		await(time.Now().Add(50 * time.Millisecond))
	}
	// A member notices with its next heartbeat, and finishes its batch.
	await(time.Now().Add(between(f.draw(), 0, 2*time.Second)))
	life, within := s.supervisor.process(f.target), s.groupState() == joining
	s.supervisor.want(f.target, false)
	return func() error {
		s.supervisor.signal(still, syscall.SIGCONT)
		err := s.supervisor.awaitExit(f.target, stopLimit)
		members, asked := s.members()
		if asked == nil && within && life != nil && err == nil && life.Wait() == nil { // it was not killed meanwhile
			s.tookEffect(f.kind)
			s.t.Logf("%s of %s: the group has %v", f.kind, f.target, members)
			if !slices.Contains(members, f.target) {
				s.continued(f.kind)
			}
		}
		return errors.Join(err, undo())
	}, nil
}
