package oauthbearer

import (
	"context"
	"errors"
	"strings"
	"testing"
)

func TestStart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		token      string
		err        error
		extensions map[string]string
		want, fail string
	}{
		"a token": {token: "a.b.c", want: "n,,\x01auth=Bearer a.b.c\x01\x01"},
		"extensions": {
			"t", nil,
			map[string]string{"logicalCluster": "lkc-1"},
			"n,,\x01auth=Bearer t\x01logicalCluster=lkc-1\x01\x01", "",
		},
		"none":       {fail: "it is empty"},
		"a header":   {token: "Bearer canary", fail: "want the token alone"},
		"injected":   {token: "canary\x01x=y", fail: "want the token alone"},
		"a name":     {token: "canary", extensions: map[string]string{"a b": "c"}, fail: `"a b"`},
		"auth":       {token: "canary", extensions: map[string]string{"auth": "c"}, fail: "other than auth"},
		"a value":    {token: "canary", extensions: map[string]string{"a": "c\x01d=e"}, fail: `"a"`},
		"no service": {err: errors.New("503"), fail: "a token for Kafka: 503"},
	} {
		m := Mechanism{func(context.Context) (string, error) { return c.token, c.err }, c.extensions}
		_, first, err := m.Start(t.Context())
		if string(first) != c.want || (err == nil) != (c.fail == "") {
			t.Errorf("%s: %q, %v", name, first, err)
		}
		if err != nil && (!strings.Contains(err.Error(), c.fail) || strings.Contains(err.Error(), "canary")) {
			t.Errorf("%s: %v, want %s", name, err, c.fail)
		}
	}
}

func TestNext(t *testing.T) {
	t.Parallel()
	if done, _, err := (exchange{}).Next(t.Context(), nil); !done || err != nil {
		t.Errorf("no answer: %v, %v", done, err)
	}
	done, _, err := (exchange{}).Next(t.Context(), []byte(`{"status":"invalid_token"}`))
	if done || err == nil || !strings.Contains(err.Error(), "invalid_token") {
		t.Errorf("refused: %v, %v", done, err)
	}
}
