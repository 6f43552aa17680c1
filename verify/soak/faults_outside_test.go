package soak

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/Shopify/toxiproxy/v2/toxics"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/effectonce/effectonce/verify/roles"
)

// outsideKinds are faults of what is around: what others configure, name, delete, and what the network changes.
func outsideKinds() []kind {
	workerLinks := func(settings) (all []string) {
		for _, w := range workers {
			all = append(all, w+"/kafka")
		}
		return all
	}
	return []kind{
		{
			name: "wrong-topics", track: "kafka", checksEffect: true,
			shortest: 12 * time.Second, longest: 20 * time.Second,
			targets: one("a new one every second"), begin: wrongTopics,
		},
		{
			name: "restart-with-held", track: "kafka", checksEffect: true,
			shortest: 12 * time.Second, longest: 18 * time.Second,
			targets: one("all relays"), begin: restartWithHeld,
		},
		{
			name: "offsets-deleted", track: "kafka", checksEffect: true,
			shortest: time.Second, longest: 3 * time.Second,
			targets: one("the workers' group"), begin: deleteOffsets,
		},
		{
			name: "throttled", track: "kafka", checksEffect: true, shortest: 5 * time.Second, longest: 12 * time.Second,
			targets: func(settings) []string { return workers }, begin: throttle,
		},
		{
			name: "flipped-bytes", track: "network", checksEffect: true,
			shortest: 2 * time.Second, longest: 6 * time.Second,
			targets: workerLinks, begin: flip,
		},
		// Some requests of a worker, commits of offsets among them, reach the broker long after it has repeated them.
		{
			name: "late-commits", track: "network", shortest: 8 * time.Second, longest: 12 * time.Second,
			targets: workerLinks, begin: func(s *testbed, f fault) (func() error, error) {
				return s.proxies.poison(s.proxiesOf(f.target), "latency", "upstream", 0.5,
					map[string]int64{"latency": (6 * time.Second).Milliseconds()})
			},
		},
		{
			name: "settings", track: "postgres", shortest: 3 * time.Second, longest: 8 * time.Second,
			targets: func(settings) []string { return []string{roles.Producer, roles.Relay, roles.Worker} },
			begin:   changeSettings,
		},
	}
}

// wrongTopics appends an event to a topic that does not exist every second. Events of other topics must not wait.
func wrongTopics(s *testbed, f fault) (func() error, error) {
	var late outboxMark
	timer := time.AfterFunc(max(0, f.lasts-publishLimit), func() { late.set(s) })
	made := 0
	stop := repeat(time.Second, func() {
		if s.appendRefused(1) == nil {
			made++
		}
	})
	return func() error {
		timer.Stop()
		_ = stop()
		if made > 0 {
			s.tookEffect(f.kind)
			s.published(f, &late)
		}
		return s.discardRefused()
	}, nil
}

// restartWithHeld kills all relays while one event is held for a topic that does not exist. Their next lives must not
// wait for it.
func restartWithHeld(s *testbed, f fault) (func() error, error) {
	if err := s.appendRefused(1); err != nil {
		return nil, errors.Join(err, s.discardRefused()) // it may have been committed
	}
	held := func() error {
		if found, err := s.refused("outbox_held"); err != nil || len(found) == 0 {
			return errors.Join(errors.New("nothing is held"), err)
		}
		return nil
	}
	if err := retry(held); err != nil {
		return nil, errors.Join(err, s.discardRefused())
	}
	killed := false
	for _, r := range relays {
		killed = s.supervisor.signal(r, syscall.SIGKILL) || killed
	}
	var late outboxMark
	timer := time.AfterFunc(max(0, f.lasts-publishLimit), func() { late.set(s) })
	return func() error {
		timer.Stop()
		if killed {
			s.tookEffect(f.kind)
			s.published(f, &late)
		}
		return s.discardRefused()
	}, nil
}

// deleteOffsets deletes the workers' group while no worker runs, as Kafka does when one was away for long.
func deleteOffsets(s *testbed, f fault) (func() error, error) {
	all := append(slices.Clone(workers), spareWorker)
	for _, w := range all {
		s.supervisor.want(w, false)
	}
	undo := func() error {
		for _, w := range workers {
			s.supervisor.want(w, true)
		}
		return nil
	}
	for _, w := range all {
		if err := s.supervisor.awaitExit(w, stopLimit); err != nil {
			return undo, err
		}
	}
	return undo, retry(func() error { // a member that was killed leaves when its session ends
		return s.ask(func(ctx context.Context, c *kgo.Client) error {
			req := kmsg.NewPtrDeleteGroupsRequest()
			req.Groups = []string{roles.Consumer}
			for _, shard := range c.RequestSharded(ctx, req) {
				if shard.Err != nil {
					return shard.Err
				}
				for _, one := range shard.Resp.(*kmsg.DeleteGroupsResponse).Groups {
					err := kerr.ErrorForCode(one.ErrorCode)
					if err != nil && !errors.Is(err, kerr.GroupIDNotFound) { // an answer may have been lost
						return err
					}
				}
			}
			s.tookEffect(f.kind)
			s.continued(f.kind) // nothing else has to go on: no worker runs
			return nil
		})
	})
}

// throttle gives a worker a quota of 20 kB a second, which it exceeds: the broker mutes it, or answers with nothing.
func throttle(s *testbed, f fault) (func() error, error) {
	since := s.mark()
	quota := func(remove bool) error {
		return s.ask(func(ctx context.Context, c *kgo.Client) error {
			entry, entity := kmsg.NewAlterClientQuotasRequestEntry(), kmsg.NewAlterClientQuotasRequestEntryEntity()
			entity.Type, entity.Name = "client-id", &f.target
			op := kmsg.NewAlterClientQuotasRequestEntryOp()
			op.Key, op.Value, op.Remove = "consumer_byte_rate", 20_000, remove
			entry.Entity, entry.Ops = append(entry.Entity, entity), append(entry.Ops, op)
			req := kmsg.NewPtrAlterClientQuotasRequest()
			req.Entries = append(req.Entries, entry)
			resp, err := req.RequestWith(ctx, c)
			if err != nil {
				return err
			}
			return kerr.ErrorForCode(resp.Entries[0].ErrorCode)
		})
	}
	if err := quota(false); err != nil {
		return nil, err
	}
	return func() error {
		s.tookEffect(f.kind)
		s.noteProgress(f, since)
		return retry(func() error { return quota(true) })
	}, nil
}

// flipToxic changes one byte in some of the records that pass, of what a checksum covers: a canary is in each payload.
type flipToxic struct{}

func init() { toxics.Register("flip", new(flipToxic)) }

// Pipe implements toxics.Toxic.
func (*flipToxic) Pipe(stub *toxics.ToxicStub) {
	seen := []byte(strings.TrimPrefix(roles.Canary, "canary")) // the rest refers to its field's name, when compressed
	for {
		select {
		case <-stub.Interrupt:
			return
		case c := <-stub.Input:
			if c == nil {
				stub.Close()
				return
			}
			if i := bytes.Index(c.Data, seen); i >= 0 && rand.IntN(4) == 0 {
				c.Data[i] ^= 1
			}
			stub.Output <- c
		}
	}
}

// flip changes bytes in what a worker fetches. It must notice, and fetch again.
func flip(s *testbed, f fault) (func() error, error) {
	worker, _, _ := strings.Cut(f.target, "/")
	noticed := func() int {
		return bytes.Count(s.supervisor.logs(s.t)[worker+".log"], []byte("an answer of Kafka cannot be read"))
	}
	before, since := noticed(), s.mark()
	heal, err := s.proxies.poison(s.proxiesOf(f.target), "flip", "downstream", 1, nil)
	if err != nil {
		return nil, err
	}
	return func() error {
		if noticed() > before {
			s.tookEffect(f.kind)
			s.noteProgress(f, since)
		}
		return heal()
	}, nil
}

// inherited are settings that were harmful once, when a role had them.
var inherited = []string{
	"client_min_messages = error", "row_security = on", "idle_session_timeout = '1s'",
	"default_transaction_read_only = on", "default_transaction_isolation = serializable",
	"search_path = pg_catalog, public",
	"statement_timeout = '2s'", "lock_timeout = '1s'", "idle_in_transaction_session_timeout = '2s'",
	"bytea_output = escape", "datestyle = 'SQL, DMY'", "timezone = 'Asia/Kathmandu'", "array_nulls = off",
	"standard_conforming_strings = off", "extra_float_digits = -15", "intervalstyle = sql_standard",
	"synchronous_commit = off", "plan_cache_mode = force_custom_plan", "enable_indexscan = off", "work_mem = '64kB'",
}

// changeSettings sets three settings of a role, and ends its sessions, so that the next ones inherit them.
func changeSettings(s *testbed, f fault) (func() error, error) {
	user, draw := roles.User(f.target), f.draw()
	end := "select pg_terminate_backend(pid) from pg_stat_activity where usename = '" + user + "'"
	undo := func() error { return s.retry("alter role "+user+" reset all", end) }
	for _, i := range draw.Perm(len(inherited))[:3] {
		s.t.Logf("%s of %s: %s", f.kind, f.target, inherited[i])
		if err := s.sql(fmt.Sprintf("alter role %s set %s", user, inherited[i])); err != nil {
			return undo, err
		}
	}
	return undo, s.sql(end)
}
