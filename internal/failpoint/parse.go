//go:build failpoints

package failpoint

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

type action string

const (
	actionKill  action = "kill"
	actionPause action = "pause"
	actionDelay action = "delay"
	actionError action = "error"
)

// rule is one setting.
type rule struct {
	action action
	time   time.Duration // of pause and delay
	from   int64         // the first hit that counts, from 1
	left   int64         // how often still; negative: always
	chance float64
}

type randomness = *rand.Rand

func newRandomness(seed uint64) randomness { return rand.New(rand.NewPCG(seed, seed)) }

// parse reads settings. Several of one point stand in their order.
func parse(settings string) (map[Name][]*rule, error) {
	rules := map[Name][]*rule{}
	for setting := range strings.SplitSeq(settings, ";") {
		if setting = strings.TrimSpace(setting); setting == "" {
			continue
		}
		pattern, text, ok := strings.Cut(setting, "=")
		if !ok {
			return nil, fmt.Errorf("%q: write point=action", setting)
		}
		r, err := parseRule(text)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", setting, err)
		}
		names, err := matching(pattern, r.action)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", setting, err)
		}
		for _, name := range names {
			each := *r
			rules[name] = append(rules[name], &each)
		}
	}
	return rules, nil
}

// matching returns the points that a pattern means.
func matching(pattern string, do action) (names []Name, err error) {
	prefix, several := strings.CutSuffix(pattern, "*")
	for _, p := range All() {
		named := string(p.Name) == pattern || several && strings.HasPrefix(string(p.Name), prefix)
		switch {
		case !named:
		case do != actionError || p.Errs:
			names = append(names, p.Name)
		case !several:
			return nil, fmt.Errorf("%s has no error path: use kill, pause or delay", p.Name)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("no point is called %s", pattern)
	}
	return names, nil
}

// parseRule reads action[(time)][@from][*times][%chance].
func parseRule(text string) (*rule, error) {
	r := &rule{from: 1, left: 1, chance: 1}
	rest, chance, ok := strings.Cut(text, "%")
	if ok {
		var err error
		if r.chance, err = strconv.ParseFloat(chance, 64); err != nil || r.chance <= 0 || r.chance > 1 {
			return nil, fmt.Errorf("%%%s: give a probability above 0, at most 1", chance)
		}
	}
	rest, times, ok := strings.Cut(rest, "*")
	if ok {
		r.left = -1
		if n, err := strconv.ParseInt(times, 10, 64); times != "" && (err != nil || n < 1) {
			return nil, fmt.Errorf("*%s: give a number of times from 1 on, or * alone", times)
		} else if times != "" {
			r.left = n
		}
	}
	rest, from, ok := strings.Cut(rest, "@")
	if ok {
		n, err := strconv.ParseInt(from, 10, 64)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("@%s: give the number of a hit, from 1 on", from)
		}
		r.from = n
	}
	name, arg, timed := strings.Cut(strings.TrimSuffix(rest, ")"), "(")
	r.action = action(name)
	if timed != strings.HasSuffix(rest, ")") {
		return nil, fmt.Errorf("%s: a parenthesis is missing", rest)
	}
	switch r.action {
	case actionKill, actionError:
		if timed {
			return nil, fmt.Errorf("%s takes no time", name)
		}
	case actionPause, actionDelay:
		d, err := time.ParseDuration(arg)
		if err != nil || d <= 0 {
			return nil, fmt.Errorf("write %s(200ms)", name)
		}
		r.time = d
	default:
		return nil, fmt.Errorf("no action is called %q: kill, pause(2s), delay(2s) or error", name)
	}
	return r, nil
}
