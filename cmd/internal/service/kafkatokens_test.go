package service

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/kafkaconn"
	"github.com/effectonce/effectonce/internal/secret"
)

// TestKafkaTokens: a token serves until a minute before its end, the secret is that of the moment, and no error repeats
// what was sent.
func TestKafkaTokens(t *testing.T) {
	t.Parallel()
	const canary = "canary-51e0"
	file := filepath.Join(t.TempDir(), "secret")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	asked, answer := 0, func(http.ResponseWriter, *http.Request) {}
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		w.Header().Set("Content-Type", "application/json")
		answer(w, r)
	}))
	defer service.Close()
	lasts := func(seconds int) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, r *http.Request) {
			_, password, _ := r.BasicAuth()
			fmt.Fprintf(w, `{"access_token": "of %s for %s", "token_type": "Bearer", "expires_in": %d}`,
				strings.TrimPrefix(password, canary), r.FormValue("scope"), seconds)
		}
	}
	of := func(params map[string]string) kafkaconn.Token {
		token, err := KafkaTokens(kafkaconn.Config{
			Username: "client", Password: secret.InFile(file), TokenURL: service.URL, TokenParams: params,
		})
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	tokens := of(map[string]string{"scope": "kafka"})
	write(canary + "1")
	for _, c := range []struct {
		answer func(http.ResponseWriter, *http.Request)
		want   string
		asked  int
	}{
		{lasts(50), "of 1 for kafka", 2}, // about to end: not kept
		{lasts(3600), "of 1 for kafka", 1},
		{lasts(3600), "of 1 for kafka", 0},
	} {
		asked, answer = 0, c.answer
		for range 2 {
			if token, err := tokens(t.Context()); err != nil || token != c.want {
				t.Errorf("%q, %v; want %s", token, err, c.want)
			}
		}
		if asked != c.asked {
			t.Errorf("asked %d times, want %d", asked, c.asked)
		}
	}

	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("another service was asked")
	}))
	defer elsewhere.Close()
	refuse := func(code int, body string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, r *http.Request) {
			_, password, _ := r.BasicAuth() // or in the form: a refused client is tried both ways
			w.Header().Set("Location", elsewhere.URL)
			w.WriteHeader(code)
			fmt.Fprintf(w, body, password+r.FormValue("client_secret"))
		}
	}
	for want, c := range map[string]func(http.ResponseWriter, *http.Request){
		`answers 401 "invalid_client": look at --kafka-username`: refuse(401,
			`{"error": "invalid_client", "error_description": "%s"}`),
		`answers 307 "": look at`:   refuse(307, "%s"),
		`answers 503 ""`:            refuse(503, "%s"),
		"answers with no token: is": refuse(200, `{"hello": "%s"}`),
	} {
		write(canary + "2")
		answer = c
		token, err := of(nil)(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), canary) || token != "" {
			t.Errorf("%q, %v; want %s", token, err, want)
		}
	}
	service.Close()
	_, err := of(nil)(t.Context())
	if err == nil || !strings.Contains(err.Error(), "does not answer: dial") {
		t.Errorf("nobody there: %v", err)
	}
}
