package dynamostore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// indexName is the name of the sparse index of unfinished keys.
const indexName = "unfinished"

// Table returns the definition of a store's table, billed by request, without the TTL on the attribute `ttl`, which
// CreateTable enables.
func Table(name string) *dynamodb.CreateTableInput {
	attribute := func(name string, kind types.ScalarAttributeType) types.AttributeDefinition {
		return types.AttributeDefinition{AttributeName: aws.String(name), AttributeType: kind}
	}
	keys := func(hash, sort string) []types.KeySchemaElement {
		return []types.KeySchemaElement{
			{AttributeName: aws.String(hash), KeyType: types.KeyTypeHash},
			{AttributeName: aws.String(sort), KeyType: types.KeyTypeRange},
		}
	}
	return &dynamodb.CreateTableInput{
		TableName: aws.String(name), BillingMode: types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{
			attribute("key", types.ScalarAttributeTypeS), attribute("part", types.ScalarAttributeTypeS),
			attribute("bucket", types.ScalarAttributeTypeN), attribute("ready", types.ScalarAttributeTypeN),
		},
		KeySchema: keys("key", "part"),
		GlobalSecondaryIndexes: []types.GlobalSecondaryIndex{{
			IndexName: aws.String(indexName), KeySchema: keys("bucket", "ready"),
			Projection: &types.Projection{
				ProjectionType:   types.ProjectionTypeInclude,
				NonKeyAttributes: []string{"state", "claimed", "lease"},
			},
		}},
	}
}

// CreateTable creates the table with its index and TTL, and waits up to five minutes until it is ready. It leaves an
// existing table unchanged, without an error; Check examines that.
func CreateTable(ctx context.Context, client *dynamodb.Client, name string) error {
	var exists *types.ResourceInUseException
	if _, err := client.CreateTable(ctx, Table(name)); err != nil && !errors.As(err, &exists) {
		return fmt.Errorf("dynamostore: create table %s: %w", name, err)
	}
	wait := dynamodb.NewTableExistsWaiter(client, func(o *dynamodb.TableExistsWaiterOptions) {
		o.MinDelay, o.MaxDelay = 100*time.Millisecond, 5*time.Second
	})
	if err := wait.Wait(ctx, &dynamodb.DescribeTableInput{TableName: &name}, 5*time.Minute); err != nil {
		return fmt.Errorf("dynamostore: wait for table %s: %w", name, err)
	}
	if exists != nil {
		return nil
	}
	if _, err := client.UpdateTimeToLive(ctx, &dynamodb.UpdateTimeToLiveInput{
		TableName: &name, TimeToLiveSpecification: &types.TimeToLiveSpecification{
			AttributeName: aws.String("ttl"),
			Enabled:       aws.Bool(true),
		},
	}); err != nil {
		return fmt.Errorf("dynamostore: enable TTL on table %s: %w", name, err)
	}
	return nil
}

// Check examines the table. It returns an error for wrong keys or a wrong index, and for a global table that is only
// eventually consistent between regions; a warning for a disabled TTL or deletion protection.
func (s *Store) Check(ctx context.Context) (warnings []string, err error) {
	out, err := s.client.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: &s.table}, s.clock.observeDates)
	if err != nil {
		return nil, fmt.Errorf("dynamostore: check table %s: %w", s.table, err)
	}
	table, want := out.Table, Table(s.table)
	if !sameKeys(table.KeySchema, want.KeySchema) {
		return nil, fmt.Errorf("dynamostore: table %s does not have this store's keys: create one with CreateTable",
			s.table)
	}
	found := false
	for _, index := range table.GlobalSecondaryIndexes {
		found = found || aws.ToString(index.IndexName) == indexName &&
			sameKeys(index.KeySchema, want.GlobalSecondaryIndexes[0].KeySchema)
	}
	if !found {
		return nil, fmt.Errorf("dynamostore: table %s has no index %q with this store's keys, which recovery "+
			"needs", s.table, indexName)
	}
	if len(table.Replicas) > 0 && table.MultiRegionConsistency != types.MultiRegionConsistencyStrong {
		return nil, fmt.Errorf("dynamostore: %s is a global table with eventual consistency between regions: two "+
			"can win one key. Use one region, or strong consistency", s.table)
	}
	if !aws.ToBool(table.DeletionProtectionEnabled) {
		warnings = append(warnings, "deletion protection is off: after a deletion of the table every key is new")
	}
	life, err := s.client.DescribeTimeToLive(ctx, &dynamodb.DescribeTimeToLiveInput{TableName: &s.table},
		s.clock.observeDates)
	if err != nil {
		return warnings, fmt.Errorf("dynamostore: check the TTL of table %s: %w", s.table, err)
	}
	switch d := life.TimeToLiveDescription; {
	case d == nil || aws.ToString(d.AttributeName) != "ttl",
		d.TimeToLiveStatus != types.TimeToLiveStatusEnabled && d.TimeToLiveStatus != types.TimeToLiveStatusEnabling:
		warnings = append(warnings, "TTL on the attribute ttl is off: items are never removed")
	}
	return warnings, nil
}

func sameKeys(a, b []types.KeySchemaElement) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if aws.ToString(a[i].AttributeName) != aws.ToString(b[i].AttributeName) || a[i].KeyType != b[i].KeyType {
			return false
		}
	}
	return true
}
