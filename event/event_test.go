package event_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/effectonce/effectonce/event"
)

func full() event.Event {
	return event.Event{
		ID: event.NewID(), Source: "payments", Tenant: "acme", Topic: "payments", Key: "acc-1", Type: "PaymentCreated",
		ContentType: event.ContentTypeJSON, Payload: []byte(`{"a":1}`), Time: time.Date(2026, 1, 2, 3, 4, 5, 678900000,
			time.UTC),
		Headers: map[string]string{"zeta": "z", "traceparent": "00-01-02-01", "alpha": ""},
		Position: event.Position{
			Lane: 7, Epoch: "x.1", Seq: 42, Partition: 3, Offset: 99,
			Timestamp: time.UnixMilli(1),
		},
	}
}

func record(e event.Event, headers []event.Header) *event.Record {
	return &event.Record{
		Topic: e.Topic, Partition: e.Position.Partition, Offset: e.Position.Offset,
		Time: time.UnixMilli(1), Key: []byte(e.Key), Value: e.Payload, Headers: headers,
	}
}

func TestHeadersAreFixedForOthers(t *testing.T) {
	e := full()
	var got []string
	for _, h := range event.AppendHeaders(nil, &e) {
		got = append(got, h.Key+"="+string(h.Value))
	}
	want := []string{
		"ce_specversion=1.0", "ce_id=" + e.ID.String(), "ce_source=payments", "ce_type=PaymentCreated",
		"ce_time=2026-01-02T03:04:05.6789Z", "content-type=application/json", "ce_tenant=acme", "ce_epoch=x.1",
		"ce_lane=7",
		"ce_laneseq=42", "traceparent=00-01-02-01", "alpha=", "zeta=z",
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("headers\n got %q\nwant %q", got, want)
	}
}

func TestDecodeGivesBackWhatWasEncoded(t *testing.T) {
	e := full()
	if got := event.Decode(record(e, event.AppendHeaders(nil, &e)), ""); !reflect.DeepEqual(got, e) {
		t.Fatalf("got  %+v\nwant %+v", got, e)
	}
}

// TestPositionsSurviveTheirHeaders: a consumer reads the numbers that the relay wrote, whatever they are.
func TestPositionsSurviveTheirHeaders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := full()
		e.Position.Lane, e.Position.Seq = rapid.Int16().Draw(t, "lane"), rapid.Int64().Draw(t, "seq")
		e.Headers["long"] = rapid.String().Draw(t, "own header")
		if got := event.Decode(record(e, event.AppendHeaders(nil, &e)), ""); !reflect.DeepEqual(got, e) {
			t.Fatalf("got  %+v\nwant %+v", got, e)
		}
	})
}

// TestDecodeTakesHeadersForWhatTheyAre: an attribute or the event's own, and what is none of either changes nothing.
func TestDecodeTakesHeadersForWhatTheyAre(t *testing.T) {
	for name, c := range map[string]struct {
		key, value string
		want       func(e *event.Event)
	}{
		"replayed":              {event.HeaderReplay, "true", func(e *event.Event) { e.Position.Replayed = true }},
		"not replayed":          {event.HeaderReplay, "yes", func(*event.Event) {}},
		"a lane that is none":   {event.HeaderLane, "40000", func(*event.Event) {}},
		"a number that is none": {event.HeaderLaneSeq, "x", func(*event.Event) {}},
		"no name":               {"", "x", func(e *event.Event) { e.Headers = map[string]string{"": "x"} }},
		"the id beside another": {event.HeaderID, "x", func(*event.Event) {}},
	} {
		id := event.NewID()
		r := &event.Record{Topic: "t", Headers: []event.Header{{Key: "id", Value: []byte(id.String())}}}
		want := event.Decode(r, "id")
		c.want(&want)
		r.Headers = append(r.Headers, event.Header{Key: c.key, Value: []byte(c.value)})
		if got := event.Decode(r, "id"); got.ID != id || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
	}
	unnamed := &event.Record{Topic: "t", Headers: []event.Header{{Value: []byte("x")}}}
	if got := event.Decode(unnamed, ""); got.ID != event.RecordID("t", 0, 0, time.Time{}) {
		t.Error("a header without a name is taken for the id")
	}
}

// TestDecodeLooksAtSoManyHeaders: what a log can be filled with cheaply costs no more memory than that.
func TestDecodeLooksAtSoManyHeaders(t *testing.T) {
	r := &event.Record{Headers: make([]event.Header, event.MaxHeaders, event.MaxHeaders+1)}
	r.Headers = append(r.Headers, event.Header{Key: event.HeaderType, Value: []byte("late")})
	if got := event.Decode(r, ""); got.Type != "" {
		t.Errorf("header %d is read", len(r.Headers))
	}
	r.Headers = r.Headers[1:]
	if got := event.Decode(r, ""); got.Type != "late" {
		t.Errorf("header %d is not read", len(r.Headers))
	}
}

// TestOwnHeadersAreSorted: the same event is the same bytes, whatever order a map has.
func TestOwnHeadersAreSorted(t *testing.T) {
	e := full()
	for i := range 20 {
		e.Headers[string(rune('a'+i))] = ""
	}
	headers := event.AppendHeaders(nil, &e)
	own := headers[len(headers)-len(e.Headers)+1:]
	if !slices.IsSortedFunc(own, func(a, b event.Header) int { return strings.Compare(a.Key, b.Key) }) {
		t.Errorf("they are in the order %v", own)
	}
}

func TestDefaultSource(t *testing.T) {
	e := full()
	e.Source = ""
	if got := event.Decode(record(e, event.AppendHeaders(nil, &e)), ""); got.Source != event.DefaultSource {
		t.Errorf("source %q", got.Source)
	}
}

// TestStorable: Postgres takes any UTF-8 but a zero byte.
func TestStorable(t *testing.T) {
	for s, want := range map[string]bool{
		"": true, "é": true, "\x00": false, "a\x00": false, "\xff": false, "\xff\x00": false,
	} {
		if event.Storable(s) != want {
			t.Errorf("%q: %v", s, !want)
		}
	}
}

// TestP9_8_MaybeHeader: what was released after an unknown outcome says so, and nothing else does.
func TestP9_8_MaybeHeader(t *testing.T) {
	e := full()
	e.Position.MaybePublished = true
	headers := event.AppendHeaders(nil, &e)
	if !slices.ContainsFunc(headers, func(h event.Header) bool {
		return h.Key == "ce_maybe" &&
			string(h.Value) == "true"
	}) {
		t.Errorf("headers %v", headers)
	}
	if got := event.Decode(record(e, headers), ""); !reflect.DeepEqual(got, e) {
		t.Errorf("got %+v", got)
	}
}

func TestReservedOwnHeadersAreNotSent(t *testing.T) {
	e := full()
	e.Headers = map[string]string{"ce_id": "forged", "content-type": "forged", "ce_anything": "forged"}
	for _, h := range event.AppendHeaders(nil, &e) {
		if string(h.Value) == "forged" {
			t.Errorf("%s was taken from the event's own headers", h.Key)
		}
	}
}

func TestDecodeForeignIDs(t *testing.T) {
	id, other := event.NewID(), event.NewID()
	h := func(kv ...string) (out []event.Header) {
		for i := 0; i < len(kv); i += 2 {
			out = append(out, event.Header{Key: kv[i], Value: []byte(kv[i+1])})
		}
		return out
	}
	at := time.UnixMilli(5)
	decoded := func(source string, id uuid.UUID) uuid.UUID {
		headers := h("ce_source", source, "ce_id", id.String())
		return event.Decode(&event.Record{Topic: "t", Headers: headers}, "").ID
	}
	for _, id := range []uuid.UUID{id, uuid.New()} {
		shop, store := decoded("shop", id), decoded("store", id)
		if shop == store || shop == id || shop != decoded("shop", id) {
			t.Errorf("%s of two sources became %s and %s", id, shop, store)
		}
		was, dated := event.IDTime(id)
		if got, is := event.IDTime(shop); is != dated || !got.Equal(was) {
			t.Errorf("%s of %v became one of %v", id, was, got)
		}
	}
	for name, c := range map[string]struct {
		headers  []event.Header
		idHeader string
		want     uuid.UUID
	}{
		"debezium":            {h("id", id.String()), "id", id},
		"configured wins":     {h("ce_id", other.String(), "id", id.String()), "id", id},
		"falls back to ce_id": {h("ce_id", id.String()), "id", id},
		"last one counts":     {h("ce_id", other.String(), "ce_id", id.String()), "", id},
		"of a relay, with source": {
			h("ce_source", "shop", "ce_id", id.String(), "ce_epoch", uuid.NewString()+".1"), "", id,
		},
		"configured, with source": {h("ce_source", "shop", "id", id.String()), "id", id},
		"configured, no uuid, with source": {
			h("ce_source", "shop", "id", "order-1"), "id", event.ForeignID("shop", "order-1"),
		},
		"no uuid, with source":  {h("ce_source", "shop", "ce_id", "order-1"), "", event.ForeignID("shop", "order-1")},
		"no uuid, no source":    {h("ce_id", "order-1"), "", event.ForeignID("t", "order-1")},
		"nil uuid is no id":     {h("ce_id", uuid.Nil.String()), "", event.RecordID("t", 2, 3, at)},
		"max uuid is no id":     {h("ce_source", "s", "ce_id", uuid.Max.String()), "", event.RecordID("t", 2, 3, at)},
		"undefined is no id":    {h("ce_id", "undefined"), "", event.RecordID("t", 2, 3, at)},
		"null, and another id":  {h("ce_id", id.String(), "id", "null"), "id", id},
		"none":                  {nil, "", event.RecordID("t", 2, 3, at)},
		"id header not adopted": {h("id", id.String()), "", event.RecordID("t", 2, 3, at)},
	} {
		e := event.Decode(&event.Record{Topic: "t", Partition: 2, Offset: 3, Time: at, Headers: c.headers}, c.idHeader)
		if e.ID != c.want {
			t.Errorf("%s: id %s, want %s", name, e.ID, c.want)
		}
	}
	if event.RecordID("t", 2, 3, at) == event.RecordID("t", 2, 3, at.Add(time.Millisecond)) {
		t.Error("a recreated topic would repeat its ids")
	}
}

func TestDerive(t *testing.T) {
	cause := event.Event{ID: event.NewID()}
	a, again, b := event.Derive(cause, "a", event.Event{}), event.Derive(cause, "a", event.Event{Topic: "x"}),
		event.Derive(cause, "b", event.Event{})
	if a.ID != again.ID || a.ID == b.ID || a.ID == cause.ID {
		t.Fatalf("ids %s %s %s of cause %s", a.ID, again.ID, b.ID, cause.ID)
	}
	want, _ := event.IDTime(cause.ID)
	if got, ok := event.IDTime(a.ID); !ok || !got.Equal(want) {
		t.Errorf("derived id has time %v (v7 %v), want its cause's %v", got, ok, want)
	}
	foreign := event.Event{ID: uuid.New(), Time: time.UnixMilli(1700000000123)}
	if got, ok := event.IDTime(event.Derive(foreign, "a", event.Event{}).ID); !ok || !got.Equal(foreign.Time) {
		t.Errorf("derived id of a v4 cause has time %v, want %v", got, foreign.Time)
	}
}

func TestIntentID(t *testing.T) {
	ns := uuid.New()
	first, again := event.IntentID(ns, 1, "x"), event.IntentID(ns, 1, "x")
	if first != again || first == event.IntentID(ns, 2, "x") || first == event.IntentID(ns, 1, "y") {
		t.Error("an intent's id must depend on namespace, version and intent alone")
	}
}

func TestJSONErrorsDoNotQuoteThePayload(t *testing.T) {
	type payment struct {
		Amount int `json:"amount"`
	}
	e, err := event.NewJSON(event.Event{Topic: "payments", Key: "k", Type: "PaymentCreated"}, payment{7})
	if err != nil || e.ID == uuid.Nil {
		t.Fatal(e.ID, err)
	}
	if p, err := event.DecodeJSON[payment](e); err != nil || p.Amount != 7 {
		t.Fatal(p, err)
	}
	for _, bad := range []string{`{"amount":"hunter2"}`, `{"amount":hunter2}`, `{"amount":12345.678}`} {
		e.Payload = []byte(bad)
		_, err := event.DecodeJSON[payment](e)
		if err == nil || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "12345") {
			t.Errorf("payload %s: error %v", bad, err)
		}
	}
}

// TestJSONNull: null is the JSON of what can be nil, and not of a struct or a number.
func TestJSONNull(t *testing.T) {
	t.Parallel()
	e := event.Event{Payload: []byte(" null\n")}
	if v, err := event.DecodeJSON[struct{ Amount int }](e); err == nil {
		t.Errorf("a struct: %+v", v)
	}
	if v, err := event.DecodeJSON[int](e); err == nil {
		t.Errorf("a number: %d", v)
	}
	if v, err := event.DecodeJSON[*int](e); err != nil || v != nil {
		t.Errorf("a pointer: %v, %v", v, err)
	}
	if v, err := event.DecodeJSON[json.RawMessage](e); err != nil || string(v) != "null" {
		t.Errorf("raw JSON: %s, %v", v, err)
	}
}

// FuzzDecode feeds foreign headers to the codec: it must not panic, and what it decoded must survive another round.
func FuzzDecode(f *testing.F) {
	f.Add("ce_id", []byte("x"), "ce_time", []byte("2026-01-02T03:04:05Z"), "ce_lane", []byte("-1"))
	f.Add("ce_laneseq", []byte("99999999999999999999"), "content-type", []byte{0xff}, "traceparent", []byte(""))
	f.Fuzz(func(t *testing.T, k1 string, v1 []byte, k2 string, v2 []byte, k3 string, v3 []byte) {
		r := &event.Record{
			Topic: "t", Key: v1, Value: v2, Time: time.UnixMilli(3),
			Headers: []event.Header{{k1, v1}, {k2, v2}, {k3, v3}},
		}
		e := event.Decode(r, "")
		if e.ID == uuid.Nil || !bytes.Equal(e.Payload, v2) {
			t.Fatalf("id %s payload %q", e.ID, e.Payload)
		}
		e.Position.Epoch = "x.1" // a relay's record keeps its id
		again := event.Decode(record(e, event.AppendHeaders(nil, &e)), "")
		if again.ID != e.ID || again.Type != e.Type || again.Tenant != e.Tenant || !again.Time.Equal(e.Time) {
			t.Fatalf("second round\n got %+v\nwant %+v", again, e)
		}
		own := maps.Clone(e.Headers)
		maps.DeleteFunc(own, func(name, _ string) bool { return event.ReservedHeader(name) })
		if len(own) != len(again.Headers) {
			t.Fatalf("own headers %q, want %q", again.Headers, own)
		}
	})
}

func TestHeadersTakeOneAllocation(t *testing.T) {
	e, dst := full(), make([]event.Header, 0, 16)
	e.Headers["long"] = strings.Repeat("x", 1000)
	if n := testing.AllocsPerRun(100, func() { event.AppendHeaders(dst, &e) }); n > 1 {
		t.Errorf("%v allocations for an event's headers, want 1", n)
	}
}
