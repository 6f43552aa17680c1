package loopback_test

import (
	"testing"

	"github.com/effectonce/effectonce/internal/loopback"
)

func TestIs(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]bool{
		"localhost": true, "127.0.0.1": true, "127.8.9.10": true, "::1": true, "::ffff:127.0.0.1": true,
		"": false, "0.0.0.0": false, "::": false, "10.0.0.7": false, "localhost.evil.example": false,
		"127.0.0.1:80": false, "[::1]": false, "127.0.0.1.evil.example": false,
	} {
		if loopback.Is(host) != want {
			t.Errorf("%q: want %v", host, want)
		}
	}
}
