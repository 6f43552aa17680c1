package dynamostore_test

import (
	"context"
	"log/slog"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/effectonce/effectonce/idempotency/dynamostore"
)

// The store for a service, with its table.
func Example() {
	_ = func(ctx context.Context, cfg aws.Config) error {
		client := dynamodb.NewFromConfig(cfg)
		if err := dynamostore.CreateTable(ctx, client, "idempotency"); err != nil { // or the definition below
			return err
		}
		store, err := dynamostore.New(client, "idempotency", dynamostore.Config{})
		if err != nil {
			return err
		}
		warnings, err := store.Check(ctx) // once, when the program starts
		slog.Info("the store of keys", "warnings", warnings)
		return err
	}
}
