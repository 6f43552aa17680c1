package ui

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/internal/audit"
	"github.com/effectonce/effectonce/ui/internal/format"
	"github.com/effectonce/effectonce/ui/internal/reads"
	"github.com/effectonce/effectonce/ui/verbs"
)

type eventsPage struct {
	DB, Side string
	Filter   filter
	Kinds    []string
	Events   []reads.Event
	Next     int64 // where the next page begins; 0: this is the last one
}

func events(q *request) error {
	f, err := q.filter()
	if err != nil {
		return err
	}
	where := q.PathValue("side")
	p := eventsPage{DB: q.db.Name, Side: where, Filter: f, Kinds: kinds[where]}
	if f.Kind != "" && !slices.Contains(p.Kinds, f.Kind) {
		return notFound("No events are of this kind.")
	}
	s, err := q.side(where, f.Consumer, reads.Viewer)
	if err != nil {
		return err
	}
	ctx, cancel := q.bounded()
	defer cancel()
	p.Events, err = s.List(ctx, admin.ParkedFilter{
		Topic: f.Topic, Key: f.Key, Code: f.Code, Kind: f.Kind, OlderThan: f.OlderThan, After: f.After,
		Limit: reads.Page + 1,
	})
	if err != nil {
		return err
	}
	if len(p.Events) > reads.Page {
		p.Events = p.Events[:reads.Page]
		p.Next = p.Events[reads.Page-1].ID
	}
	return q.render("events", http.StatusOK, view{
		Title: "Parked events of " + p.DB, Nav: "keys", Live: f.After == 0, Body: p,
	})
}

// eventPage is one event, with or without its content.
type eventPage struct {
	DB, Side          string
	Event             reads.Event
	Key               *admin.BlockedKey // the blocked key of the event; nil: none
	Content           *content          // nil: not revealed
	Trace             string            // the address of the append's trace; empty: unknown
	Path              []moment          // its history in all databases
	Release, Discard  string            // commands
	Fields            *fields           // to edit; nil: not revealed, or no form can carry them
	Reveal, EditUsage string
	ReadOnly          bool
}

func (q *request) eventPage(e reads.Event) *eventPage {
	id := fmt.Sprint(e.ID)
	where := q.PathValue("side")
	command := func(verb string, flags ...string) string {
		return q.db.WithReason(reads.ParkedArgs(where, verb, append([]string{"--id=" + id}, flags...)...)...)
	}
	return &eventPage{
		DB: q.db.Name, Side: where, Event: e, ReadOnly: q.readsOnly(), Path: q.pathOf(e.MessageID),
		Release: command("release"), Discard: command("discard"),
		Reveal:    q.db.Command(reads.ParkedArgs(where, "show", "--id="+id, "--payload")...),
		EditUsage: command("edit", "--payload-file=new.bin"),
	}
}

func showEvent(q *request) error {
	id, err := q.id()
	if err != nil {
		return err
	}
	where := q.PathValue("side")
	s, err := q.side(where, "", reads.Viewer)
	if err != nil {
		return err
	}
	ctx, cancel := q.bounded()
	defer cancel()
	found, err := s.List(ctx, admin.ParkedFilter{ID: id, Limit: 1})
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return &refusal{
			http.StatusNotFound, "This event is not parked",
			"It was released or discarded meanwhile, or never was here. The audit says who did what.",
		}
	}
	p := q.eventPage(found[0])
	if e := found[0]; !e.Alone {
		keys, err := s.BlockedKeys(ctx, admin.BlockedFilter{Tenant: &e.Tenant, Topic: e.Topic, Key: e.Key})
		if err != nil {
			return err
		}
		for i := range keys {
			if keys[i].Consumer == e.Consumer {
				p.Key = &keys[i]
			}
		}
	}
	return q.render("event", http.StatusOK, view{Title: fmt.Sprintf("Event %d", id), Nav: "keys", Body: p})
}

// revealEvent shows headers and payload once. The audit is written first.
func revealEvent(q *request) error {
	id, err := q.id()
	if err != nil {
		return err
	}
	reason, err := q.reason()
	if err != nil {
		return err
	}
	s, err := q.side(q.PathValue("side"), "", q.who.Name)
	if err != nil {
		return err
	}
	ctx, cancel := q.bounded()
	defer cancel()
	e, err := s.Reveal(ctx, id, reason)
	if err != nil {
		status, o := judge(err)
		return &refusal{status, "The payload is not shown", o.Text + " " + o.Detail}
	}
	q.db.Changed()
	p := q.eventPage(e)
	p.Content, p.Trace = decode(e), traceOf(q.h.cfg.TraceURL, e.Headers)
	p.Fields = fieldsOf(e)
	return q.render("event", http.StatusOK, view{Title: fmt.Sprintf("Event %d", id), Nav: "keys", Body: p})
}

// editPage previews an edit.
type editPage struct {
	DB, Side, ID  string
	Reason        string
	Lines         []format.DiffLine
	NoJSON        error
	Same          bool
	Before, After string // of the form: a hash, and the payload
	Command       string
	Bytes         [2]int
}

// previewEdit shows what an edit would change. It reads nothing: the form carries the payload that was revealed.
func previewEdit(q *request) error {
	if _, err := q.id(); err != nil {
		return err
	}
	reason, err := q.reason()
	if err != nil {
		return err
	}
	before, after, err := q.edited()
	if err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(before))
	noJSON := audit.NoJSON([]byte(before), []byte(after))
	return q.render("edit", http.StatusOK, view{Title: "Edit event " + q.PathValue("id"), Nav: "keys", Body: editPage{
		DB: q.db.Name, Side: q.PathValue("side"), ID: q.PathValue("id"), Reason: reason,
		Lines: format.Diff(before, after), Same: before == after, Before: hex.EncodeToString(sum[:]),
		After: base64.StdEncoding.EncodeToString([]byte(after)), Bytes: [2]int{len(before), len(after)},
		NoJSON: noJSON,
		Command: q.db.WithReason(reads.ParkedArgs(q.PathValue("side"), "edit",
			append([]string{"--id=" + q.PathValue("id")}, payloadFlags(noJSON != nil)...)...)...),
	}})
}

func payloadFlags(anyBytes bool) []string {
	if anyBytes {
		return []string{"--payload-file=new.bin", "--any-bytes"}
	}
	return []string{"--payload-file=new.bin"}
}

// edited returns the payload before and after the edit. Browsers end lines with CR and LF.
func (q *request) edited() (before, after string, err error) {
	b, err := base64.StdEncoding.DecodeString(q.PostForm.Get("was"))
	if err != nil {
		return "", "", errForm
	}
	return string(b), strings.ReplaceAll(q.PostForm.Get("payload"), "\r\n", "\n"), nil
}

func editEvent(q *request) error {
	id, err := q.id()
	if err != nil {
		return err
	}
	sum, err := hex.DecodeString(q.PostForm.Get("before"))
	after, err64 := base64.StdEncoding.DecodeString(q.PostForm.Get("after"))
	if err != nil || err64 != nil || len(sum) != sha256.Size {
		return errForm
	}
	if after == nil {
		after = []byte{}
	}
	before := [sha256.Size]byte(sum)
	edit := admin.Edit{Payload: &after, Before: &before, AnyBytes: q.PostForm.Get("any_bytes") == "1"}
	flags := payloadFlags(edit.AnyBytes)
	return q.change(q.editing(id, edit, flags, "The payload is changed."))
}

func releaseEvent(q *request) error {
	id, err := q.id()
	if err != nil {
		return err
	}
	of := verbs.ParkedKey{Where: verbs.Side(q.PathValue("side"))}
	return q.changeParked(verbs.ReleaseParked{ParkedKey: of, ID: id}, "")
}

func discardEvent(q *request) error {
	id, err := q.id()
	if err != nil {
		return err
	}
	of := verbs.ParkedKey{Where: verbs.Side(q.PathValue("side"))}
	return q.changeParked(verbs.DiscardParked{ParkedKey: of, ID: id}, "")
}
