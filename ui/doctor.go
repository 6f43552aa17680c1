package ui

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/ui/internal/reads"
)

// doctorView is the page of all findings.
type doctorView struct {
	Databases []examined
}

// examined lists the findings of one database, the worst first.
type examined struct {
	Name     string
	Away     string
	At       time.Time // zero: the doctor has not finished
	Unsure   string    // why the findings are not those of now
	Findings []finding
	Fine     []finding // what is as it should be
	Counts   map[string]int
}

// order sorts severities.
var order = []doctor.Severity{doctor.Fail, doctor.Warn, doctor.Skip}

func doctorPage(q *request) error {
	var p doctorView
	for _, d := range q.h.databases {
		one := examined{Name: d.Name, Counts: map[string]int{}}
		st, _, why := q.stateOf(d)
		if one.Away = why; why == "" {
			var list []doctor.Finding
			list, one.At, one.Unsure = q.examined(d, st)
			for _, f := range list {
				one.Counts[string(f.Severity)]++
				to := &one.Findings
				if f.Severity == doctor.OK {
					to = &one.Fine
				}
				*to = append(*to, q.h.guided(d, f))
			}
			slices.SortStableFunc(one.Findings, func(a, b finding) int {
				return slices.Index(order, a.Severity) - slices.Index(order, b.Severity)
			})
		}
		p.Databases = append(p.Databases, one)
	}
	return q.render("doctor", http.StatusOK, view{Title: "Doctor", Nav: "doctor", Live: true, Body: p})
}

// examined returns the doctor's findings, when it looked, and why that is not now. A request that finds none, or old
// ones, waits a little. The finding about idempotency keys is as new as the state.
func (q *request) examined(d *reads.Database, st reads.State) (list []doctor.Finding, at time.Time, unsure string) {
	x, at, err := d.Findings.Get(q.Context(), 0)
	if _, old := errors.AsType[*reads.UnknownError](err); old {
		x, at, err = d.Findings.Get(q.Context(), min(firstLook, q.left()))
	}
	if err != nil {
		unsure = reads.Away(err)
	}
	restored, read, err := d.Restored.Get(q.Context(), 0)
	unread := err != nil || slices.ContainsFunc(restored, func(f doctor.Finding) bool { return f.Unknown })
	if unread && !read.IsZero() && time.Since(read) > time.Minute {
		d.Restored.Changed() // its findings hold for ten minutes
	}
	list = slices.Concat(x.Findings, restored)
	if err != nil {
		list = append(list, doctor.Finding{
			Check: "restored", Severity: doctor.Skip, Unknown: !read.IsZero(),
			Found: "not looked at: " + reads.Away(err),
		})
	}
	if st.Keys != nil {
		list = append(list, doctor.Keys(d.Subject(true), st.Keys.Stuck, st.Keys.Overdue, nil)...)
	}
	doctor.Mark(list, x.Acknowledged)
	dated(list[len(x.Findings):][:len(restored)], time.Since(read))
	return list, at, unsure
}

// dated says of findings that are older than the others when they were made.
func dated(list []doctor.Finding, ago time.Duration) {
	if ago < time.Minute {
		return
	}
	for i := range list {
		list[i].Found += fmt.Sprintf(" (looked at %d min ago)", int(ago.Minutes()))
	}
}

// examineNow runs the doctor at once, for all viewers. It changes nothing.
func examineNow(q *request) error {
	ctx, cancel := context.WithTimeout(q.Context(), 2*q.h.cfg.Timeout+doctor.TailTimeout)
	defer cancel()
	for _, wait := range []time.Duration{0, time.Hour} { // all begin before the first is waited for
		for _, d := range q.h.databases {
			if wait == 0 {
				d.Findings.Changed()
				d.Restored.Changed()
			}
			_, _, _ = d.Findings.Get(ctx, wait)
			_, _, _ = d.Restored.Get(ctx, wait)
		}
	}
	http.Redirect(q.w, q.Request, q.h.path("doctor"), http.StatusSeeOther)
	return nil
}

// firstLook is how long a page waits for the first findings.
const firstLook = 2 * time.Second
