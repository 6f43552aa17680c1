package soak

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/verify/roles"
)

// sqlLimit bounds one statement of the harness.
const sqlLimit = 10 * time.Second

// healLimit bounds the attempts to undo a fault.
const healLimit = time.Minute

// sql runs statements as superuser, without proxies.
func (x *testbed) sql(statements ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), sqlLimit)
	defer cancel()
	for _, s := range statements {
		if _, err := x.admin.Exec(ctx, s, pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("%.60s: %w", s, err)
		}
	}
	return nil
}

// retry repeats until it succeeds: a fault must be undone even during other faults.
func retry(try func() error) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(healLimit); ; <-tick.C {
		if err := try(); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// retry runs statements, each until it succeeds.
func (x *testbed) retry(statements ...string) error {
	for _, s := range statements {
		if err := retry(func() error { return x.sql(s) }); err != nil {
			return err
		}
	}
	return nil
}

func one(name string) func(settings) []string {
	return func(settings) []string { return []string{name} }
}

func postgresKinds() []kind {
	const track = "postgres"
	allRoles := func(settings) []string {
		return []string{
			roles.Producer, roles.Relay, roles.Worker, roles.Relay, roles.Worker,
			roles.Operator, roles.Maintainer,
		}
	}
	return []kind{
		{
			name: "crash", track: track, shortest: 200 * time.Millisecond, longest: 3 * time.Second,
			targets: one("postgres"), begin: func(s *testbed, _ fault) (func() error, error) {
				s.pgMu.Lock()
				s.pg.StopImmediate()
				return func() error { defer s.pgMu.Unlock(); return s.startAgain() }, nil
			},
		},
		{
			name: "kill-postmaster", track: track, shortest: 200 * time.Millisecond, longest: 2 * time.Second,
			targets: one("postgres"), begin: func(s *testbed, _ fault) (func() error, error) {
				s.pgMu.Lock()
				s.pg.Kill()
				return func() error { defer s.pgMu.Unlock(); return s.startAgain() }, nil
			},
		},
		{
			name: "restart", track: track, shortest: 200 * time.Millisecond, longest: 2 * time.Second,
			targets: one("postgres"), begin: func(s *testbed, _ fault) (func() error, error) {
				s.pgMu.Lock()
				s.pg.StopFast()
				return func() error { defer s.pgMu.Unlock(); return s.startAgain() }, nil
			},
		},
		{
			name: "terminate", track: track, shortest: 2 * time.Second, longest: 6 * time.Second, targets: allRoles,
			begin: terminate,
		},
		{
			name: "no-login", track: track, shortest: 2 * time.Second, longest: 6 * time.Second, targets: allRoles,
			begin: func(s *testbed, f fault) (func() error, error) {
				user := roles.User(f.target)
				undo := func() error { return s.retry("alter role " + user + " login") }
				return undo, s.sql("alter role "+user+" nologin", "select pg_terminate_backend(pid) "+
					"from pg_stat_activity where usename = '"+user+"'")
			},
		},
		{
			name: "revoke", track: track, shortest: 2 * time.Second, longest: 6 * time.Second,
			targets: func(settings) []string { return slices.Sorted(maps.Keys(grantees)) },
			begin: func(s *testbed, f fault) (func() error, error) {
				who := grantees[f.target]
				return func() error { return s.retry("grant " + f.target + " to " + who) },
					s.sql("revoke " + f.target + " from " + who) // it may be done though its answer was lost
			},
		},
		{
			name: kindStandby, track: track, checksEffect: true, shortest: 2 * time.Second, longest: 8 * time.Second,
			targets: func(settings) []string {
				return slices.Concat(relays, workers)
			}, begin: standbyAnswers,
		},
		{
			name: "no-connections", track: track, shortest: 2 * time.Second, longest: 6 * time.Second,
			targets: one("postgres"), begin: exhaust,
		},
		{
			name: "disk-data", track: track, shortest: 2 * time.Second, longest: 5 * time.Second, targets: one("data"),
			begin: fill,
		},
		{
			name: "disk-wal", track: track, shortest: 2 * time.Second, longest: 5 * time.Second, targets: one("wal"),
			begin: fill,
		},
	}
}

// grantees are the roles that lose a privilege for a while.
var grantees = map[string]string{
	"delete on outbox_event": "effectonce_relay", "insert on outbox_claim": "effectonce_relay",
	"update on outbox_lane":   "effectonce_relay",
	"insert on inbox_message": "effectonce_inbox", "insert on inbox_parked": "effectonce_inbox",
	"select on inbox_days": "effectonce_inbox",
}

// startAgain restarts the server. Backends of a killed one may still be exiting, or a disk may still be full.
func (x *testbed) startAgain() error { return retry(x.pg.TryStart) }

// terminate ends random backends of a role, five a second.
func terminate(s *testbed, f fault) (func() error, error) {
	return repeat(200*time.Millisecond, func() {
		_ = s.sql("select pg_terminate_backend(pid) from pg_stat_activity where usename = '" + roles.User(f.target) +
			"' order by random() limit 1")
	}), nil
}

// repeat calls do every so often until undo.
func repeat(every time.Duration, do func()) (undo func() error) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			do()
			select {
			case <-tick.C:
			case <-end:
				return
			}
		}
	}()
	return func() error { close(end); <-ended; return nil }
}

// exhaust takes all connections that are not reserved for superusers.
func exhaust(s *testbed, _ fault) (func() error, error) {
	var mu sync.Mutex
	var held []*pgx.Conn
	u, err := url.Parse(roles.Login(roles.Producer, s.address, s.database))
	if err != nil {
		return nil, err
	}
	stop := repeat(300*time.Millisecond, func() {
		for {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			conn, err := pgx.Connect(ctx, u.String())
			cancel()
			if err != nil {
				return
			}
			mu.Lock()
			held = append(held, conn)
			mu.Unlock()
		}
	})
	// Other existing connections stay; new ones are refused.
	_ = s.sql("select pg_terminate_backend(pid) from (select pid from pg_stat_activity where usename like 'player_%' " +
		"order by random() limit 8) p")
	return func() error {
		err := stop()
		for _, c := range held {
			_ = c.Close(context.Background())
		}
		return err
	}, nil
}

// fill leaves no free space on one of the server's disks. Its undo frees the space, and restarts the server if it
// stopped.
func fill(s *testbed, f fault) (func() error, error) {
	if s.disks == nil {
		return nil, fmt.Errorf("no disk of its own: %w", s.noDisks)
	}
	s.pgMu.Lock()
	if err := s.disks.full(f.target); err != nil {
		s.pgMu.Unlock()
		return nil, err
	}
	return func() error {
		defer s.pgMu.Unlock()
		if err := s.disks.restoreSize(f.target); err != nil {
			return err
		}
		if s.pg.Ended() {
			return s.startAgain()
		}
		return nil
	}, nil
}

// kindStandby needs a standby, whose creation starts before the run because it takes a while.
const kindStandby = "standby-answers"

// standbyAnswers connects a process to a standby for a while, like a DNS name that moves too early and comes back. Half
// of the time the connections to the standby stay open: the process has to notice.
func standbyAnswers(s *testbed, f fault) (func() error, error) {
	standby, err := s.standby()
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(standby.URL())
	if err != nil {
		return nil, err
	}
	l := s.routes[f.target]
	before := l.connections(u.Host)
	l.setTarget(u.Host)
	l.cut()
	return func() error {
		reached := l.connections(u.Host) - before
		l.setTarget(s.address)
		stay := f.param%2 == 0
		if !stay {
			l.cut()
		}
		if reached == 0 {
			return nil
		}
		s.tookEffect(f.kind)
		began := time.Now()
		for !l.allAt(s.address) {
			if time.Since(began) > backWithin {
				s.t.Logf("%s of %s: connections are still at the standby %v later", f.kind, f.target, backWithin)
				return nil
			}
			await(time.Now().Add(100 * time.Millisecond))
		}
		s.t.Logf("%s of %s: %d connections to the standby, none after %v (they were left open: %v)", f.kind, f.target,
			reached, time.Since(began).Round(time.Millisecond), stay)
		s.continued(f.kind)
		return nil
	}, nil
}

// backWithin bounds how long a process may keep connections to the standby.
const backWithin = 15 * time.Second
