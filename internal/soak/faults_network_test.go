package soak

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/effectonce/effectonce/internal/players"
)

// links of players: which proxy of whom. "relay-1/kafka" are those to all brokers.
func links(s settings) (all []string) {
	for _, p := range slices.Concat(producers, relays, workers, relays, workers) {
		all = append(all, p+"/postgres")
	}
	for _, p := range slices.Concat(relays, workers) {
		all = append(all, p+"/kafka")
	}
	return all
}

// proxiesOf is the names of a link's proxies.
func (x *scene) proxiesOf(link string) []string {
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
	toxic := func(sort string, toxicity float64, attributes func(f fault) map[string]int64) func(*scene, fault) (func() error, error) {
		return func(s *scene, f fault) (func() error, error) {
			stream := []string{"upstream", "downstream"}[f.param%2]
			return s.proxies.poison(s.proxiesOf(f.target), sort, stream, toxicity, attributes(f))
		}
	}
	amount := func(name string, least, most int64) func(f fault) map[string]int64 {
		return func(f fault) map[string]int64 { return map[string]int64{name: least + int64(f.param>>1)%(most-least)} }
	}
	return []kind{
		{name: "latency", track: track, shortest: 2 * time.Second, longest: 8 * time.Second, targets: links, begin: toxic("latency", 1, func(f fault) map[string]int64 {
			return map[string]int64{"latency": 20 + int64(f.param>>1)%400, "jitter": int64(f.param>>1) % 100}
		})},
		{name: "reset", track: track, shortest: time.Second, longest: 4 * time.Second, targets: links, begin: toxic("reset_peer", 0.7, amount("timeout", 0, 500))},
		{name: "half-open", track: track, shortest: 2 * time.Second, longest: 8 * time.Second, targets: links, begin: toxic("timeout", 1, func(fault) map[string]int64 {
			return map[string]int64{"timeout": 0}
		})},
		{name: "bandwidth", track: track, shortest: 3 * time.Second, longest: 8 * time.Second, targets: links, begin: toxic("bandwidth", 1, amount("rate", 5, 200))},
		{name: "slow-close", track: track, shortest: 3 * time.Second, longest: 8 * time.Second, targets: links, begin: toxic("slow_close", 1, amount("delay", 500, 4000))},
		{name: "cut-midway", track: track, shortest: 2 * time.Second, longest: 5 * time.Second, targets: links, begin: toxic("limit_data", 0.8, amount("bytes", 200, 20_000))},
		// Some requests of a relay reach the broker when the relay has long given them up and sent them again.
		{name: "late-produce", track: track, shortest: 5 * time.Second, longest: 10 * time.Second, targets: func(settings) (all []string) {
			for _, r := range relays {
				all = append(all, r+"/kafka")
			}
			return all
		}, begin: func(s *scene, f fault) (func() error, error) {
			return s.proxies.poison(s.proxiesOf(f.target), "latency", "upstream", 0.5, map[string]int64{"latency": (players.PublishTimeout + time.Second).Milliseconds()})
		}},
	}
}
