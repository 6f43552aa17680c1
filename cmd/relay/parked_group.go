package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/ui/verbs"
)

// likeFlags choose failures with common properties. Type and code are pointers, because they may be empty.
type likeFlags struct {
	Code  *string   `line:"" shown:"(any)" help:"Only with this error code."`
	Type  *string   `line:"" shown:"(any)" help:"Only of this type: a key counts by the first event of its list."`
	Kind  string    `line:"" shown:"(any)" help:"Only of this kind, as failures shows it."`
	Since time.Time `line:"" shown:"(any)" placeholder:"TIME" help:"Only what was parked at this time (RFC 3339) or later."`
	Until time.Time `line:"" shown:"(any)" placeholder:"TIME" help:"Only what was parked at this time (RFC 3339) or earlier."`
}

// of selects failures of these kinds, or of the one that --kind names.
func (c likeFlags) of(topic string, kinds ...string) (f admin.FailureFilter, err error) {
	f = admin.FailureFilter{Topic: topic, Code: c.Code, Type: c.Type, Kinds: kinds, Since: c.Since, Until: c.Until}
	if c.Kind != "" {
		if f.Kinds = []string{c.Kind}; !slices.Contains(kinds, c.Kind) {
			err = service.Usage("--kind wants one of %v", kinds)
		}
	}
	return f, err
}

// groupFlags are the flags of a command for many failures.
type groupFlags struct {
	All bool `line:"" help:"Every parked key and every lone event, of --topic and what follows if it is given. Quarantined events stay."`
	likeFlags
	Limit  int  `line:"" default:"0" shown:"(none)" help:"With --all: at most so many keys and lone events, the longest parked first."`
	DryRun bool `line:"" help:"With --all: only count."`
}

// check refuses flags of a verb that names neither a key nor an event nor all, or more than one of these.
func (c groupFlags) check(v verbs.Of[admin.ParkedOperator], key verbs.ParkedKey, id int64) error {
	refusal := v.Verb().Refusal
	if c.All {
		if refusal = nil; id > 0 || key != (verbs.ParkedKey{Topic: key.Topic, Where: key.Where}) {
			refusal = verbs.ErrUnnamed
		}
	}
	if refusal != nil {
		return &service.UsageError{Err: refusal}
	}
	if c.Limit < 0 {
		return service.Usage("--limit wants a number above zero")
	}
	if !c.All && c != (groupFlags{}) {
		return service.Usage("--code, --type, --kind, --since, --until, --limit and --dry-run go with --all")
	}
	return nil
}

// mostCounted limits a count.
const mostCounted = 100_000

// act runs do with an operator, who is nobody if it only counts.
func (c groupFlags) act(ctx context.Context, p *program, s side, ch changeFlags, id int64,
	do func(ctx context.Context, o parkedOperator) error,
) error {
	if !c.DryRun {
		return changeParked(ctx, p, s, ch, id, do)
	}
	if err := s.checkKeyFlags(); err != nil {
		return err
	}
	return s.act(ctx, p, ch.Timeout, nobody, do)
}

// count reports how many failures a change of all would affect.
func (c groupFlags) count(ctx context.Context, p *program, o parkedOperator, ch changeFlags,
	f admin.FailureFilter,
) error {
	f.Limit, f.Count = cmp.Or(c.Limit, mostCounted), true
	list, err := o.Failures(ctx, f)
	if err != nil {
		return err
	}
	most := ""
	if c.Limit == 0 && len(list) == mostCounted {
		most = "at least "
	}
	r := admin.Counted(list)
	if len(list) == 0 {
		return c.none(ctx, p, o, ch, f)
	}
	return ch.report(p, r, "%s%s. Nothing is changed.", most, counts(r))
}

// none reports that nothing matches, or only what --all leaves.
func (c groupFlags) none(ctx context.Context, p *program, o parkedOperator, ch changeFlags,
	f admin.FailureFilter,
) error {
	f.Kinds, f.Limit, f.Count = []string{"quarantined"}, mostCounted, false
	list, err := o.Failures(ctx, f)
	if err != nil {
		return err
	}
	r := admin.GroupResult{}
	if n := len(list); n > 0 {
		return ch.report(p, r, "Nothing is changed: what matches is %d quarantined events, which --all leaves. The "+
			"inbox cannot tell whether they were applied: check the business row of each, and name it with --id.", n)
	}
	return ch.report(p, r, "Nothing is changed: no parked key and no lone event matches. `parked failures` shows what "+
		"there is.")
}

// each changes failures page by page. A failure that fails again meanwhile comes last, and ends it.
func (c groupFlags) each(ctx context.Context, o parkedOperator, f admin.FailureFilter, change func(ctx context.Context,
	o admin.ParkedOperator, list []admin.Failure, reason string) (admin.GroupResult, error), reason string,
) (sum admin.GroupResult, err error) {
	const page = 1000
	type failure struct {
		tenant, topic, key string
		id                 int64
	}
	seen := map[failure]bool{}
	for {
		f.Limit = page
		if c.Limit > 0 {
			f.Limit = min(page, c.Limit-len(seen))
		}
		var list []admin.Failure
		if f.Limit > 0 {
			if list, err = o.Failures(ctx, f); err != nil {
				return sum, err
			}
		}
		list = slices.DeleteFunc(list, func(u admin.Failure) bool {
			one := failure{u.Tenant, u.Topic, u.Key, 0}
			if u.Alone {
				one = failure{id: u.ID}
			}
			again := seen[one]
			seen[one] = true
			return again
		})
		if len(list) == 0 {
			return sum, nil
		}
		r, err := change(ctx, o, list, reason)
		sum.Keys, sum.Alone, sum.Events = sum.Keys+r.Keys, sum.Alone+r.Alone, sum.Events+r.Events
		sum.Overtaken, sum.MaybePublished = sum.Overtaken+r.Overtaken, sum.MaybePublished+r.MaybePublished
		if err != nil {
			return sum, err
		}
	}
}

func (c *parkedReleaseCommand[S]) releaseAll(ctx context.Context, p *program, o parkedOperator, s verbs.Side) error {
	f, err := c.of(c.Args.Topic, "refused", "failed", "behind")
	if err != nil {
		return err
	}
	if c.DryRun {
		return c.count(ctx, p, o, c.changeFlags, f)
	}
	r, err := c.each(ctx, o, f, admin.ReleaseAll, c.Reason)
	if err == nil && r == (admin.GroupResult{}) {
		return c.none(ctx, p, o, c.changeFlags, f)
	}
	return c.ended(p, r, err, fmt.Sprintf("Released: %s: %s them, each key in order.%s", counts(r), s.Releases(),
		s.Again()))
}

func (c *parkedDiscardCommand[S]) discardAll(ctx context.Context, p *program, o parkedOperator) error {
	f, err := c.of(c.Args.Topic, "refused", "failed")
	if err != nil {
		return err
	}
	if c.DryRun {
		return c.count(ctx, p, o, c.changeFlags, f)
	}
	r, err := c.each(ctx, o, f, admin.DiscardAll, c.Reason)
	if err == nil && r == (admin.GroupResult{}) {
		return c.none(ctx, p, o, c.changeFlags, f)
	}
	return c.ended(p, r, err, fmt.Sprintf("Given up for good: %s, of each key the first. "+
		"What waits behind them stays parked until it is released.%s", counts(r),
		verbs.MaybePublished(r.MaybePublished)))
}

// counts says how many events a group has, and of what.
func counts(r admin.GroupResult) string {
	return fmt.Sprintf("%s, of %s and %s", verbs.Plural(r.Events, "event"), verbs.Plural(r.Keys, "key"),
		verbs.Plural(r.Alone, "lone event"))
}

// ended reports the result also if an error has ended it early.
func (f changeFlags) ended(p *program, r admin.GroupResult, err error, done string) error {
	if err != nil {
		return errors.Join(fmt.Errorf("broken off after %s: %w", counts(r), err), f.print(p, r))
	}
	return f.report(p, r, "%s", done)
}

type parkedFailuresCommand[S side] struct {
	onSide[S]
	readFlags
	likeFlags
	Topic string `line:"" shown:"(any)" help:"Only of this topic."`
	By    string `line:"" default:"none" enum:"none,hour,day" help:"Also group by the hour or the day (UTC) of parking: none, hour or day."`
}

// Help is the longer text of --help.
func (c *parkedFailuresCommand[S]) Help() string {
	return `Groups what waits for a person by topic, type, error code and kind, the largest group first. A key counts by the first event of its
list. Of more than 10,000 keys and lone events it groups the 10,000 that have been parked longest. release and discard take the same
flags with --all.`
}

func (c *parkedFailuresCommand[S]) run(ctx context.Context, p *program) error {
	f, err := c.of(c.Topic, c.Side.words().kinds...)
	if err != nil {
		return err
	}
	f.Limit = admin.MostGrouped
	every := map[string]time.Duration{"hour": time.Hour, "day": 24 * time.Hour}[c.By]
	return c.Side.act(ctx, p, c.Timeout, nobody, func(ctx context.Context, o parkedOperator) error {
		list, err := o.Failures(ctx, f)
		if err != nil {
			return err
		}
		w := c.Side.words()
		head := "KEYS\tALONE\t" + w.column("CONSUMER") + "TOPIC\tTYPE\tKIND\tCODE\tFIRST\tLAST\tERROR"
		err = writeList(p.stdout, c.JSON, admin.GroupFailures(list, every), head, func(table io.Writer,
			g admin.FailureGroup,
		) {
			fmt.Fprintf(table, "%d\t%d\t%s%s\t%s\t%s\t%s\t%s\t%s\t%s\n", g.Keys, g.Alone, w.column(g.Consumer), g.Topic,
				shown(g.Type), g.Kind, errorText(g.Code), g.First.UTC().Format(time.RFC3339),
				g.Last.UTC().Format(time.RFC3339), errorText(g.Error))
		})
		if err == nil && !c.JSON && len(list) == admin.MostGrouped {
			_, err = fmt.Fprintln(p.stdout, "\nThese are the 10,000 that have been parked longest; there may be more.")
		}
		return err
	})
}
