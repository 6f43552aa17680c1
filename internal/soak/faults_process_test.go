package soak

import (
	"errors"
	"slices"
	"syscall"
	"time"
)

var errNobody = errors.New("the player was between two lives")

// kinds are all faults that are known.
func kinds() []kind {
	return slices.Concat(processKinds(), networkKinds(), postgresKinds(), sessionKinds(), kafkaKinds())
}

func everybody(settings) []string {
	return slices.Concat(producers, relays, workers, []string{operator, maintainer})
}

// weighty are those whose death matters most.
func weighty(settings) []string {
	return slices.Concat(relays, workers, relays, workers, producers[:1])
}

func processKinds() []kind {
	const track = "processes"
	nothing := func() error { return nil }
	return []kind{
		{name: "kill", track: track, shortest: 500 * time.Millisecond, longest: 2 * time.Second, targets: weighty, begin: func(s *scene, f fault) (func() error, error) {
			if !s.cast.signal(f.target, syscall.SIGKILL) {
				return nil, errNobody
			}
			return nothing, nil
		}},
		{name: "kill-any", track: track, shortest: 500 * time.Millisecond, longest: time.Second, targets: everybody, begin: func(s *scene, f fault) (func() error, error) {
			if !s.cast.signal(f.target, syscall.SIGKILL) {
				return nil, errNobody
			}
			return nothing, nil
		}},
		// Beyond the lease and beyond the session: what goes on afterwards is a zombie.
		{name: "pause", track: track, shortest: 4 * time.Second, longest: 12 * time.Second, targets: weighty, begin: func(s *scene, f fault) (func() error, error) {
			if !s.cast.signal(f.target, syscall.SIGSTOP) {
				return nil, errNobody
			}
			return func() error { s.cast.signal(f.target, syscall.SIGCONT); return nil }, nil
		}},
		// A short pause ends before anybody has noticed.
		{name: "stutter", track: track, shortest: 200 * time.Millisecond, longest: 1500 * time.Millisecond, targets: weighty, begin: func(s *scene, f fault) (func() error, error) {
			if !s.cast.signal(f.target, syscall.SIGSTOP) {
				return nil, errNobody
			}
			return func() error { s.cast.signal(f.target, syscall.SIGCONT); return nil }, nil
		}},
		{name: "deploy", track: track, shortest: time.Second, longest: 3 * time.Second, targets: everybody, begin: func(s *scene, f fault) (func() error, error) {
			s.cast.want(f.target, false)
			return func() error { s.cast.want(f.target, true); return nil }, nil
		}},
		{name: "rebalances", track: track, shortest: 6 * time.Second, longest: 14 * time.Second, targets: func(settings) []string { return []string{"workers"} }, begin: storm},
	}
}

// storm lets workers join and leave every two seconds, so that the group hardly ever rests.
func storm(s *scene, f fault) (func() error, error) {
	draw, all := f.draw(), append(slices.Clone(workers), spare)
	away := spare
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(2 * time.Second)
		defer tick.Stop()
		for {
			next := all[draw.IntN(len(all))]
			if next != away {
				s.cast.want(away, true)
				s.cast.want(next, false)
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
			s.cast.want(w, true)
		}
		s.cast.want(spare, false)
		return nil
	}, nil
}
