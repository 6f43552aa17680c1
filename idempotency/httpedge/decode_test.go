package httpedge_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/effectonce/effectonce/idempotency/httpedge"
)

type transfer struct {
	Amount int64     `json:"amount"`
	Note   *string   `json:"note,omitempty"`
	Parts  []part    `json:"parts"`
	At     time.Time `json:"at"`
	Labels map[string]string
	Hidden int `json:"-"`
}

type part struct {
	ID string `json:"id"`
}

func decode(body string, most int64) (to transfer, err error) {
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
	err = httpedge.Decode(httptest.NewRecorder(), r, most, &to)
	return to, err
}

func TestDecode(t *testing.T) {
	t.Parallel()
	got, err := decode(` {"amount":7,"note":"é😀","parts":[{"id":"a"}],"at":"2026-01-02T03:04:05Z","Labels":{"A":"x"}} `,
		1000)
	if err != nil || got.Amount != 7 || *got.Note != "é😀" || got.Parts[0].ID != "a" || got.At.IsZero() ||
		got.Labels["A"] != "x" {
		t.Errorf("%+v, %v", got, err)
	}
	for body, want := range map[string]string{
		`{"amount":1,"amount":2}`:           `"amount" occurs twice`,
		`{"amount":1,"Amount":2}`:           `"Amount" occurs twice`,
		`{"Amount":2}`:                      `unknown member "Amount": want amount, note, parts, at, Labels`,
		`{"Hidden":2}`:                      `unknown member`,
		`{"parts":[{"id":"a"},{"ID":"a"}]}`: `unknown member "ID": want id`,
		`{"Labels":{"a":"x","A":"secret"}}`: `"A" occurs twice`,
		`{"amount":1.0}`:                    `amount: want an integer`,
		`{"amount":1e3}`:                    `amount: want an integer`,
		`{"amount":"secret"}`:               `amount: want an integer`,
		`{"amount":9223372036854775808}`:    `amount: want an integer`,
		`{"note":"secret\ud800"}`:           `not valid Unicode`,
		`{"note":"secret\udfff"}`:           `not valid Unicode`,
		"{\"note\":\"secret\ufffd\"}":       `not valid Unicode`,
		"{\"note\":\"secret\xff\"}":         `not UTF-8`,
		`{"at":"secret"}`:                   `cannot be read`,
		`{"amount":1} {}`:                   `not one JSON value`,
		`{"amount":1`:                       `not one JSON value`,
		``:                                  `not one JSON value`,
		`[]`:                                `want an object`,
		`{"parts":` + strings.Repeat(" ", 1000) + `[]}`: `longer than 1000 bytes`,
	} {
		_, err := decode(body, 1000)
		var p *httpedge.Problem
		if !errors.As(err, &p) || !strings.Contains(p.Detail, want) || strings.Contains(p.Detail, "secret") {
			t.Errorf("%.60s: %v, want %q", body, err, want)
		}
	}
}

// TestCanonical_NamesDifferInCase: encoding/json reads the last one, so their order matters.
func TestCanonical_NamesDifferInCase(t *testing.T) {
	t.Parallel()
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r.Header.Set("Content-Type", "application/json")
	for _, pair := range [][2]string{
		{`{"amount":1,"Amount":2}`, `{"Amount":2,"amount":1}`},
		{`{"a":{"k":1,"K":2}}`, `{"a":{"\u212a":2,"k":1}}`}, // the Kelvin sign is a k to encoding/json
	} {
		if httpedge.Canonical(r, []byte(pair[0])) == httpedge.Canonical(r, []byte(pair[1])) {
			t.Errorf("%s and %s have one fingerprint", pair[0], pair[1])
		}
	}
}
