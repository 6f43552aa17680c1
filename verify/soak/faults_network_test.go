package soak

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/verify/roles"
)

// links lists the links between processes and servers, as "relay-1/kafka", which stands for all brokers.
func links(s settings) (all []string) {
	for _, p := range slices.Concat(producers, relays, workers, relays, workers) {
		all = append(all, p+"/postgres")
	}
	for _, p := range slices.Concat(relays, workers) {
		all = append(all, p+"/kafka")
	}
	return all
}

// proxiesOf returns the names of a link's proxies.
func (x *testbed) proxiesOf(link string) []string {
	if name, ok := strings.CutSuffix(link, "/kafka"); ok {
		var all []string
		for i := range x.brokers {
			all = append(all, fmt.Sprintf("%s/kafka-%d", name, i))
		}
		return all
	}
	return []string{link}
}

func networkKinds() []kind {
	const track = "network"
	toxic := func(sort string, toxicity float64, attributes func(f fault) map[string]int64) func(*testbed, fault) (
		func() error, error) {
		return func(s *testbed, f fault) (func() error, error) {
			stream := []string{"upstream", "downstream"}[f.param%2]
			return s.proxies.poison(s.proxiesOf(f.target), sort, stream, toxicity, attributes(f))
		}
	}
	amount := func(name string, least, most int64) func(f fault) map[string]int64 {
		return func(f fault) map[string]int64 { return map[string]int64{name: least + int64(f.param>>1)%(most-least)} }
	}
	return []kind{
		{
			name: "latency", track: track, shortest: 2 * time.Second, longest: 8 * time.Second, targets: links,
			begin: toxic("latency", 1, func(f fault) map[string]int64 {
				return map[string]int64{"latency": 20 + int64(f.param>>1)%400, "jitter": int64(f.param>>1) % 100}
			}),
		},
		{
			name: "reset", track: track, shortest: time.Second, longest: 4 * time.Second, targets: links,
			begin: toxic("reset_peer", 0.7, amount("timeout", 0, 500)),
		},
		{
			name: "half-open", track: track, shortest: 2 * time.Second, longest: 8 * time.Second, targets: links,
			begin: toxic("timeout", 1, func(fault) map[string]int64 {
				return map[string]int64{"timeout": 0}
			}),
		},
		{
			name: "bandwidth", track: track, shortest: 3 * time.Second, longest: 8 * time.Second, targets: links,
			begin: toxic("bandwidth", 1, amount("rate", 5, 200)),
		},
		{
			name: "slow-close", track: track, shortest: 3 * time.Second, longest: 8 * time.Second, targets: links,
			begin: toxic("slow_close", 1, amount("delay", 500, 4000)),
		},
		{
			name: "cut-midway", track: track, shortest: 2 * time.Second, longest: 5 * time.Second, targets: links,
			begin: toxic("limit_data", 0.8, amount("bytes", 200, 20_000)),
		},
		{
			name: "host-vanishes", track: track, checksEffect: true,
			shortest: 10 * time.Second, longest: 15 * time.Second,
			targets: func(settings) []string {
				return workers // a relay sends its transactions whole
			}, begin: vanish,
		},
		// Some requests of a relay reach the broker long after the relay has timed out and repeated them.
		{
			name: "late-produce", track: track, shortest: 5 * time.Second, longest: 10 * time.Second,
			targets: func(settings) (all []string) {
				for _, r := range relays {
					all = append(all, r+"/kafka")
				}
				return all
			}, begin: func(s *testbed, f fault) (func() error, error) {
				return s.proxies.poison(s.proxiesOf(f.target), "latency", "upstream", 0.5,
					map[string]int64{"latency": (roles.PublishTimeout + time.Second).Milliseconds()})
			},
		},
	}
}

// vanish simulates the loss of a process's host in the middle of a transaction: its connections go dead without an end,
// and the server has to end the transaction. The supervisor restarts the process on another host.
func vanish(s *testbed, f fault) (func() error, error) {
	l := s.routes[f.target]
	var open []*wire
	for limit := time.Now().Add(5 * time.Second); len(open) == 0; {
		if time.Now().After(limit) {
			return nil, errors.New("no open transaction was found")
		}
		await(time.Now().Add(10 * time.Millisecond))
		l.setOpen(false)
		if open = s.within(l.wires()); len(open) > 0 {
			await(time.Now().Add(50 * time.Millisecond))
			open = s.within(open) // none of them was about to end
		}
		if len(open) == 0 {
			l.setOpen(true)
		}
	}
	dead := l.wires()
	for _, w := range dead {
		w.kill()
	}
	killed := s.supervisor.signal(f.target, syscall.SIGKILL)
	l.setOpen(true)
	return func() error {
		ended := 0
		for _, w := range open {
			select {
			case <-w.ended:
				ended++
			default:
			}
		}
		for _, w := range dead {
			w.close()
		}
		if killed {
			s.tookEffect(f.kind)
			s.t.Logf("%s of %s: the server has ended %d of %d transactions within %v", f.kind, f.target, ended,
				len(open), f.lasts)
			if ended == len(open) {
				s.continued(f.kind)
			}
		}
		return nil
	}, nil
}

// within returns the connections whose transaction has written or locked rows, and waits for its client.
func (x *testbed) within(wires []*wire) (open []*wire) {
	ctx, cancel := context.WithTimeout(context.Background(), sqlLimit)
	defer cancel()
	rows, err := x.admin.Query(ctx, "select client_port from pg_stat_activity where client_port = any($1) and state "+
		"= 'idle in transaction' and backend_xid is not null", ports(wires))
	if err != nil {
		return nil
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(wires), func(w *wire) bool { return !slices.Contains(found, w.port()) })
}
