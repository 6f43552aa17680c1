package ui

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/ui/internal/format"
	"github.com/effectonce/effectonce/ui/internal/reads"
	"github.com/effectonce/effectonce/ui/verbs"
)

// spans are the times by which failures can be grouped.
var spans = map[string]time.Duration{"": 0, "hour": time.Hour, "day": 24 * time.Hour}

type failuresPage struct {
	By    string
	Lists []failuresList
	Any   bool
}

// failuresList is the list of one outbox or inbox.
type failuresList struct {
	DB, Side string
	Away     string
	Groups   []failureGroup
	Capped   int // how many were grouped, if there may be more; 0: all
}

type failureGroup struct {
	admin.FailureGroup
	Query string // of its page
}

func failures(q *request) error {
	p := failuresPage{By: q.URL.Query().Get("by")}
	every, known := spans[p.By]
	if !known {
		return notFound("Failures are grouped by hour or day.")
	}
	for _, d := range q.h.databases {
		st, _, why := q.stateOf(d)
		if why != "" {
			p.Lists = append(p.Lists, failuresList{DB: d.Name, Away: why})
			continue
		}
		for _, where := range reads.Sides {
			if !st.Has(where) {
				continue
			}
			one := failuresList{DB: d.Name, Side: where}
			found, _, err := d.Failures[where].Get(q.Context(), q.h.cfg.Timeout)
			if err != nil {
				one.Away = reads.Away(err)
			}
			if len(found) == admin.MostGrouped && q.who.Scope == nil {
				one.Capped = admin.MostGrouped
			}
			for _, g := range admin.GroupFailures(q.who.Scope.failures(found), every) {
				one.Groups = append(one.Groups, failureGroup{g, likeOf(g, every).query()})
			}
			p.Any = p.Any || len(one.Groups) > 0
			p.Lists = append(p.Lists, one)
		}
	}
	return q.render("failures", http.StatusOK, view{Title: "Failures", Nav: "failures", Live: true, Body: p})
}

// like selects the failures of a group, in URLs and forms.
type like struct {
	Consumer, Topic, Type, Code, Kind string
	Since, Until                      time.Time
}

func likeOf(g admin.FailureGroup, every time.Duration) like {
	l := like{Consumer: g.Consumer, Topic: g.Topic, Type: g.Type, Code: g.Code, Kind: g.Kind}
	if every > 0 {
		l.Since, l.Until = g.First, g.Last
	}
	return l
}

func (l like) query() string {
	v := url.Values{}
	for _, f := range l.Fields() {
		v.Set(f[0], f[1])
	}
	return "?" + v.Encode()
}

// Fields returns the hidden fields of the group's forms.
func (l like) Fields() [][2]string {
	return append([][2]string{
		{"consumer", l.Consumer}, {"topic", l.Topic}, {"type", l.Type}, {"code", l.Code}, {"kind", l.Kind},
	}, l.times()...)
}

// times returns the time filters that are set.
func (l like) times() (list [][2]string) {
	if !l.Since.IsZero() {
		list = append(list, [2]string{"since", l.Since.UTC().Format(time.RFC3339Nano)})
	}
	if !l.Until.IsZero() {
		list = append(list, [2]string{"until", l.Until.UTC().Format(time.RFC3339Nano)})
	}
	return list
}

// like parses a group from a form.
func (q *request) like(form url.Values) (l like, err error) {
	l = like{
		Consumer: form.Get("consumer"), Topic: form.Get("topic"), Type: form.Get("type"), Code: form.Get("code"),
		Kind: form.Get("kind"),
	}
	for name, at := range map[string]*time.Time{"since": &l.Since, "until": &l.Until} {
		if text := form.Get(name); text != "" {
			if *at, err = time.Parse(time.RFC3339Nano, text); err != nil {
				return l, errForm
			}
		}
	}
	if l.Topic == "" || !slices.Contains(kinds[q.PathValue("side")], l.Kind) {
		return l, notFound("A group has a topic and a kind.")
	}
	return l, nil
}

// filter selects the failures of a group, one more than a verb changes.
func (l like) filter() admin.FailureFilter {
	return admin.FailureFilter{
		Topic: l.Topic, Type: &l.Type, Code: &l.Code, Kinds: []string{l.Kind}, Since: l.Since, Until: l.Until,
		Limit: mostAtOnce + 1, Count: true,
	}
}

// command returns the command of a verb for the group.
func (l like) command(where, name string) []string {
	args := reads.ParkedArgs(where, name, "--all")
	if where == reads.InInbox {
		args = append(args, "--consumer="+l.Consumer)
	}
	args = append(args, "--topic="+l.Topic, "--type="+l.Type, "--code="+l.Code, "--kind="+l.Kind)
	for _, at := range l.times() {
		args = append(args, "--"+at[0]+"="+at[1])
	}
	return args
}

// groupPage previews a verb for a group.
type groupPage struct {
	DB, Side         string
	Group            like // up to the last failure that was counted
	Failures         []admin.Failure
	Counted          admin.GroupResult
	Behind           int64  // events that wait behind these failures
	More             bool   // more failures exist than were counted
	Release, Discard string // commands; empty: no such verb
	Count            string
	ReadOnly         bool
	Most             int
}

// shownFailures bounds how many failures of a group are listed.
const shownFailures = 20

func showGroup(q *request) error {
	l, err := q.like(q.URL.Query())
	if err != nil {
		return err
	}
	where := q.PathValue("side")
	ctx, cancel := q.bounded()
	defer cancel()
	list, err := q.failuresOf(ctx, where, l, reads.Viewer)
	if err != nil {
		return err
	}
	p := groupPage{DB: q.db.Name, Side: where, Group: l, ReadOnly: q.readsOnly(), Most: mostAtOnce}
	if p.More = len(list) > mostAtOnce; p.More {
		list = list[:mostAtOnce]
	}
	if p.Counted = admin.Counted(list); len(list) > 0 {
		p.Group.Until = list[len(list)-1].Since // later failures were not counted, and are not changed
	}
	p.Behind = p.Counted.Events - p.Counted.Keys - p.Counted.Alone
	if l.Kind != "quarantined" {
		p.Release = q.db.WithReason(p.Group.command(where, "release")...)
	}
	if l.Kind == "refused" || l.Kind == "failed" {
		p.Discard = q.db.WithReason(p.Group.command(where, "discard")...)
	}
	p.Count = q.db.Command(append(p.Group.command(where, "release"), "--dry-run")...)
	p.Failures = list[:min(len(list), shownFailures)]
	return q.render("group", http.StatusOK, view{Title: "Failures of " + l.Topic, Nav: "failures", Body: p})
}

// failuresOf lists the failures of a group that are in the viewer's Scope.
func (q *request) failuresOf(ctx context.Context, where string, l like, name string) ([]admin.Failure, error) {
	s, err := q.side(where, l.Consumer, name)
	if err != nil {
		return nil, err
	}
	return s.Failures(ctx, l.filter())
}

func releaseGroup(q *request) error {
	return q.changeGroup("release", "Release", admin.ReleaseAll, func(r admin.GroupResult) string {
		where, what := verbs.Side(q.PathValue("side")), format.Plural(r.Keys, "key")
		switch {
		case r.Keys == 0:
			what = format.Plural(r.Alone, "lone event")
		case r.Alone > 0:
			what += " and " + format.Plural(r.Alone, "lone event")
		}
		return fmt.Sprintf("%s released: %s %s, each key in order.%s", what+areOrIs(r.Keys+r.Alone), where.Releases(),
			format.Plural(r.Events, "event"), where.Again())
	})
}

func discardGroup(q *request) error {
	return q.changeGroup("discard", "Discard", admin.DiscardAll, func(r admin.GroupResult) string {
		return format.Plural(r.Events, "event") + " given up for good. What waits behind " +
			"them stays parked until its key is released." + verbs.MaybePublished(r.MaybePublished)
	})
}

func areOrIs(n int64) string {
	if n == 1 {
		return " is"
	}
	return " are"
}

var errGroupGone = errors.New("no failure of the group is left: they were released or discarded meanwhile")

// verbOfAll applies a group's verb to a list.
type verbOfAll func(ctx context.Context, o admin.ParkedOperator, list []admin.Failure, reason string) (
	admin.GroupResult, error)

func (q *request) changeGroup(name, title string, verbOf verbOfAll, says func(admin.GroupResult) string) error {
	if _, err := q.reason(); err != nil {
		return err
	}
	l, err := q.like(q.PostForm)
	if err != nil {
		return err
	}
	most, err := strconv.Atoi(q.PostForm.Get("limit"))
	allowed := l.Kind == "refused" || l.Kind == "failed" || l.Kind == "behind" && name == "release"
	if err != nil || most < 1 || most > mostAtOnce || l.Until.IsZero() || !allowed {
		return errForm
	}
	where := q.PathValue("side")
	command := append(l.command(where, name), "--limit="+strconv.Itoa(most))
	return q.change(verb{
		name: title + " failures of " + l.Topic, command: command, back: q.h.path("failures"),
		do: func(ctx context.Context, reason string) (string, error) {
			list, err := q.failuresOf(ctx, where, l, q.who.Name)
			if err == nil && len(list) == 0 {
				err = fmt.Errorf("%w (%w)", errGroupGone, admin.ErrNotParked)
			}
			if err != nil {
				return "", err
			}
			s, err := q.side(where, l.Consumer, q.who.Name)
			if err != nil {
				return "", err
			}
			r, err := verbOf(ctx, s, list[:min(len(list), most)], reason)
			done := says(r)
			if r.Overtaken > 0 {
				done += fmt.Sprintf(" %d were changed by somebody else meanwhile.", r.Overtaken)
			}
			if err != nil {
				return "", &verbs.PartlyError{Done: verbs.Done{Text: done}, Err: err}
			}
			return done, nil
		},
	})
}
