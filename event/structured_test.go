package event_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
)

const structured = "application/cloudevents+json"

// decodeAs decodes a value that came with a content type.
func decodeAs(contentType, value string, more ...event.Header) event.Event {
	headers := append([]event.Header{{Key: "content-type", Value: []byte(contentType)}}, more...)
	return event.Decode(&event.Record{
		Topic: "t", Partition: 1, Offset: 2, Time: time.UnixMilli(3), Key: []byte("k"),
		Value: []byte(value), Headers: headers,
	}, "")
}

func TestStructuredMode(t *testing.T) {
	t.Parallel()
	id := event.NewID()
	at := time.Date(2026, 1, 2, 3, 4, 5, 600_000_000, time.UTC)
	head := `"specversion":"1.0","source":"shop","type":"Placed","time":"2026-01-02T03:04:05.6Z","id":"` + id.String() +
		`"`
	binary := event.Decode(&event.Record{Headers: []event.Header{
		{Key: "ce_source", Value: []byte("shop")}, {Key: "ce_id", Value: []byte(id.String())},
	}}, "")
	want := event.Event{
		ID: binary.ID, Source: "shop", Topic: "t", Key: "k", Type: "Placed", Time: at,
		Position: event.Position{Lane: -1, Partition: 1, Offset: 2, Timestamp: time.UnixMilli(3)},
	}
	for name, c := range map[string]struct {
		contentType, value string
		edit               func(e *event.Event)
	}{
		"JSON": {
			structured, `{` + head + `,"data":{"a": 1}}`,
			func(e *event.Event) { e.ContentType, e.Payload = event.ContentTypeJSON, []byte(`{"a": 1}`) },
		},
		"JSON, named": {
			"Application/CloudEvents+JSON; charset=UTF-8", `{` + head +
				`,"datacontenttype":"text/x+json","data":"s"}`,
			func(e *event.Event) { e.ContentType, e.Payload = "text/x+json", []byte(`"s"`) },
		},
		"text": {
			structured, `{` + head + `,"datacontenttype":"text/plain","data":"a\nb"}`,
			func(e *event.Event) { e.ContentType, e.Payload = "text/plain", []byte("a\nb") },
		},
		"XML as an object": {
			structured, `{` + head + `,"datacontenttype":"text/xml","data":{"a":1}}`,
			func(e *event.Event) { e.ContentType, e.Payload = "text/xml", []byte(`{"a":1}`) },
		},
		"bytes": {
			structured, `{` + head + `,"datacontenttype":"x/y","data_base64":"AP8="}`,
			func(e *event.Event) { e.ContentType, e.Payload = "x/y", []byte{0, 0xff} },
		},
		"no data": {structured, `{` + head + `}`, func(*event.Event) {}},
		"null beside data": {
			structured, `{` + head + `,"data_base64": null,"data":{"a": 1}}`,
			func(e *event.Event) { e.ContentType, e.Payload = event.ContentTypeJSON, []byte(`{"a": 1}`) },
		},
		"only nulls": {
			structured, `{` + head + `,"data_base64":null,"data":null}`,
			func(e *event.Event) { e.ContentType = event.ContentTypeJSON },
		},
		"null": {
			structured, `{` + head + `,"data":null,"subject":null}`,
			func(e *event.Event) { e.ContentType = event.ContentTypeJSON },
		},
		"extensions": {structured, `{` + head + `,"tenant":"acme","subject":"s","n":7,"b":true}`, func(e *event.Event) {
			e.Tenant, e.Headers = "acme", map[string]string{"ce_subject": "s", "ce_n": "7", "ce_b": "true"}
		}},
	} {
		w := want
		c.edit(&w)
		if got := decodeAs(c.contentType, c.value); !reflect.DeepEqual(got, w) {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, w)
		}
	}
	if got := decodeAs(structured,
		`{"specversion":"1.0","source":"shop","type":"T","id":"order-1"}`); got.ID != event.ForeignID("shop",
		"order-1") {
		t.Errorf("id %s", got.ID)
	}
	if got := decodeAs(structured, `{`+head+`}`,
		event.Header{Key: "ce_id", Value: []byte("order-1")}); got.ID != event.ForeignID("shop", "order-1") {
		t.Errorf("id %s: a header of the record wins", got.ID)
	}
}

// TestNotStructured: what is no CloudEvent is left as it is, and known by its place.
func TestNotStructured(t *testing.T) {
	t.Parallel()
	ok := `"specversion":"1.0","source":"s","type":"T","id":"1"`
	for _, c := range [][2]string{
		{structured, ""},
		{structured, "not JSON"},
		{structured, `["array"]`},
		{structured, `{"source":"s","type":"T","id":"1"}`},
		{structured, `{"specversion":"2.0","source":"s","type":"T","id":"1"}`},
		{structured, `{"specversion":"1.0","source":"s","type":"T"}`},
		{structured, `{"specversion":"1.0","source":{},"type":"T","id":"1"}`},
		{structured, `{` + ok + `,"data_base64":"?"}`},
		{structured, `{` + ok + `,"data_base64":7}`},
		{"application/cloudevents-batch+json", `[{` + ok + `}]`},
		{"application/cloudevents+jsonx", `{` + ok + `}`},
		{"application/json", `{` + ok + `}`},
	} {
		got := decodeAs(c[0], c[1])
		if got.ID != event.RecordID("t", 1, 2, time.UnixMilli(3)) || string(got.Payload) != c[1] ||
			got.ContentType != c[0] || got.Type != "" || got.Headers != nil {
			t.Errorf("%q: %+v", c[1], got)
		}
	}
}

// TestParkedStructuredRecordIsDecoded: an event that is set aside and released is decoded again, from what was read.
func TestParkedStructuredRecordIsDecoded(t *testing.T) {
	t.Parallel()
	r := event.Record{
		Topic: "t", Value: []byte(`{"specversion":"1.0","source":"s","type":"T","id":"1","data":7}`),
		Headers: []event.Header{{Key: "content-type", Value: []byte(structured)}},
	}
	e := event.Decode(&r, "")
	e.Raw = r.Encode()
	if got := e.Record(); !reflect.DeepEqual(got, r) || string(e.Payload) != "7" {
		t.Errorf("got %+v", got)
	}
}

// FuzzStructured: whatever the value, decoding does not fail, and without its parts nothing is made up.
func FuzzStructured(f *testing.F) {
	f.Add(
		[]byte(
			`{"specversion":"1.0","source":"s","type":"T","id":"1","data":{"a":[1]},"time":"x","lane":5,"laneseq":"y"}`))
	f.Add(
		[]byte(
			`{"specversion":"1.0","source":"s","type":"T","id":"1","data_base64":"AA==","data":1,"":"","datacontenttype":";"}`))
	f.Add([]byte(`{"id":`))
	f.Fuzz(func(t *testing.T, value []byte) {
		e := decodeAs(structured, string(value))
		if e.ID == uuid.Nil {
			t.Fatal("no id")
		}
		if e.ContentType == structured && string(e.Payload) != string(value) {
			t.Fatalf("payload %q of %q", e.Payload, value)
		}
	})
}

// A document of a few megabytes may have a million members.
func TestStructuredModeIsBounded(t *testing.T) {
	t.Parallel()
	for members, id := range map[int]string{event.MaxHeaders: "its own", event.MaxHeaders + 1: "its place"} {
		var b strings.Builder
		b.WriteString(`{"specversion":"1.0","id":"0199a4c2-7d1c-7000-8000-000000000001","source":"s","type":"T"`)
		for i := range members - 4 {
			fmt.Fprintf(&b, `,"x%d":1`, i)
		}
		b.WriteString("}")
		e := decodeAs(structured, b.String())
		if own := e.Type == "T"; own != (id == "its own") || own != (len(e.Headers) > 0) {
			t.Errorf("%d members: type %q, %d headers, want %s id", members, e.Type, len(e.Headers), id)
		}
	}
}
