package service

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"github.com/effectonce/effectonce/internal/kafkaconn"
)

// tokenTimeout bounds a request to an identity service; earlyExpiry is how long before its end a token is replaced.
const (
	tokenTimeout = 10 * time.Second
	earlyExpiry  = time.Minute
)

// KafkaTokens returns a source of tokens from the settings' TokenURL, by client id and secret (RFC 6749, 4.4). A token
// serves all connections until a minute before its end; the secret is read again for each token. Nil: no TokenURL.
func KafkaTokens(c kafkaconn.Config) (kafkaconn.Token, error) {
	if c.TokenURL == "" {
		return nil, nil
	}
	params := url.Values{}
	for name, value := range c.TokenParams {
		params.Set(name, value)
	}
	tokens := oauth2.ReuseTokenSourceWithExpiry(nil, &clientTokens{
		cfg: c, params: params, client: &http.Client{
			Timeout: tokenTimeout,
			// The secret is sent to the named service only.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, earlyExpiry)
	return func(context.Context) (string, error) {
		token, err := tokens.Token()
		if err != nil {
			return "", err
		}
		return token.AccessToken, nil
	}, nil
}

// clientTokens requests a token each time.
type clientTokens struct {
	cfg    kafkaconn.Config
	params url.Values
	client *http.Client
}

// Token implements oauth2.TokenSource. Its error contains nothing that was sent.
func (c *clientTokens) Token() (*oauth2.Token, error) {
	secret, err := c.cfg.Secret()
	if err != nil {
		return nil, err
	}
	ctx := context.WithValue(context.Background(), oauth2.HTTPClient, c.client)
	token, err := (&clientcredentials.Config{
		ClientID: c.cfg.Username, ClientSecret: secret, TokenURL: c.cfg.TokenURL, EndpointParams: c.params,
	}).Token(ctx)
	if err == nil {
		return token, nil
	}
	// The body of the answer may repeat the request.
	if refused, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
		return nil, fmt.Errorf("--kafka-oauth-token-url answers %d %.100q: look at --kafka-username and "+
			"--kafka-password, which are the client's id and secret there, and --kafka-oauth-token-params",
			refused.Response.StatusCode, refused.ErrorCode)
	}
	if failed, ok := errors.AsType[*url.Error](err); ok {
		return nil, fmt.Errorf("--kafka-oauth-token-url does not answer: %w", failed.Err)
	}
	return nil, errors.New("--kafka-oauth-token-url answers with no token: is it the service's token endpoint?")
}
