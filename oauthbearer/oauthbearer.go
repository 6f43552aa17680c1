// Package oauthbearer logs in to Kafka with a token, as clouds and identity services issue them (RFC 7628, KIP-255):
// for the SASL of publisher.Config and consumer.Config.
package oauthbearer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/segmentio/kafka-go/sasl"
)

// Mechanism is OAUTHBEARER. Each connection asks for a token. A broker that limits sessions (connections.max.reauth.ms)
// closes a connection whose token has ended; the next one begins with a fresh token.
type Mechanism struct {
	// Token returns one that is valid now. Required. A source of tokens that keeps them until they end, as that of
	// golang.org/x/oauth2, spares the identity service a request a connection.
	Token func(ctx context.Context) (string, error)
	// Extensions go with the token, such as Confluent Cloud's logicalCluster and identityPoolId. Default: none.
	Extensions map[string]string
}

// Name is what brokers call it.
func (Mechanism) Name() string { return "OAUTHBEARER" }

// Start begins to log in; kafka-go calls it for each connection. Errors do not repeat the token.
func (m Mechanism) Start(ctx context.Context) (sasl.StateMachine, []byte, error) {
	token, err := m.Token(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("a token for Kafka: %w", err)
	}
	if token == "" || strings.ContainsAny(token, "\x01 \r\n") {
		return nil, nil, errors.New("a token for Kafka: it is empty, or has blanks: want the token alone")
	}
	first := "n,,\x01auth=Bearer " + token
	for name, value := range m.Extensions {
		if name == "auth" || strings.ContainsFunc(name, notALetter) || strings.Contains(value, "\x01") {
			return nil, nil, fmt.Errorf("the extension %q for Kafka: want a name of letters, other than auth", name)
		}
		first += "\x01" + name + "=" + value
	}
	return exchange{}, []byte(first + "\x01\x01"), nil
}

func notALetter(r rune) bool { return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') }

// exchange is what follows the token.
type exchange struct{}

// Next reads the broker's answer: nothing, or why it refuses the token.
func (exchange) Next(_ context.Context, answer []byte) (done bool, response []byte, err error) {
	if len(answer) == 0 || slices.Equal(answer, []byte{1}) {
		return true, nil, nil
	}
	return false, nil, fmt.Errorf("the broker refuses the token: %.200s", answer)
}
