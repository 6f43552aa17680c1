package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-msk-iam-sasl-signer-go/signer"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"

	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/internal/kafkaconn"
)

// credentialsWindow is how long before their end AWS's credentials are replaced: a session at a broker ends no later
// than its credentials.
const credentialsWindow = 5 * time.Minute

// kafkaTokens makes the source of tokens that the settings select.
func kafkaTokens(c kafkaconn.Config) (kafkaconn.Token, error) {
	if c.SASL == kafkaconn.AWSMSKIAM {
		return mskTokens()
	}
	return service.KafkaTokens(c)
}

// mskTokens signs a token for each connection. That takes no request: the SDK keeps the credentials of its default
// chain until shortly before their end.
func mskTokens() (kafkaconn.Token, error) {
	cfg, err := config.LoadDefaultConfig(context.Background(), config.WithCredentialsCacheOptions(
		func(o *aws.CredentialsCacheOptions) { o.ExpiryWindow = credentialsWindow }))
	if err != nil {
		return nil, fmt.Errorf("--kafka-sasl=aws-msk-iam: AWS's settings: %w", err)
	}
	if cfg.Region == "" {
		return nil, errors.New("--kafka-sasl=aws-msk-iam: set AWS_REGION to the cluster's region")
	}
	return func(ctx context.Context) (string, error) {
		token, _, err := signer.GenerateAuthTokenFromCredentialsProvider(ctx, cfg.Region, cfg.Credentials)
		if err != nil {
			return "", fmt.Errorf("no credentials of AWS: give the pod, task or instance a role, or set "+
				"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: %w", err)
		}
		return token, nil
	}, nil
}
