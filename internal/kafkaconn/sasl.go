package kafkaconn

import (
	"context"
	"fmt"

	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"

	"github.com/effectonce/effectonce/oauthbearer"
)

// mechanism logs in with the current password.
type mechanism struct{ cfg Config }

// Name returns the broker's name of the mechanism.
func (m mechanism) Name() string { return name(m.cfg.SASL) }

// Start starts a login. kafka-go calls it for each connection.
func (m mechanism) Start(ctx context.Context) (sasl.StateMachine, []byte, error) {
	now, err := m.cfg.mechanism()
	if err != nil {
		return nil, nil, err
	}
	return now.Start(ctx)
}

func (c Config) mechanism() (sasl.Mechanism, error) {
	password, err := c.Secret()
	if err != nil {
		return nil, err
	}
	algorithm := scram.SHA256
	switch c.SASL {
	case Plain:
		return plain.Mechanism{Username: c.Username, Password: password}, nil
	case OAuthBearer:
		token := func(context.Context) (string, error) { return password, nil }
		return oauthbearer.Mechanism{Token: token, Extensions: c.Extensions}, nil
	case ScramSHA512:
		algorithm = scram.SHA512
	}
	m, err := scram.Mechanism(algorithm, c.Username, password)
	if err != nil {
		// The library's error may contain the password.
		return nil, fmt.Errorf("--kafka-username or --kafka-password has characters that %s does not allow", c.SASL)
	}
	return m, nil
}
