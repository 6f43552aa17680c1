package kafkatest

import (
	"context"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Deny takes the right to write to a topic away from everybody, as a slip in the cluster's ACLs does, and returns what
// gives it back; the end of the test gives it back too. It skips the test where there is no real Kafka.
func Deny(t testing.TB, brokers []string, topic string) (allow func()) {
	t.Helper()
	RequireReal(t)
	create := kmsg.NewPtrCreateACLsRequest()
	create.Creations = []kmsg.CreateACLsRequestCreation{{
		ResourceType: kmsg.ACLResourceTypeTopic, ResourceName: topic,
		ResourcePatternType: kmsg.ACLResourcePatternTypeLiteral, Principal: "User:*", Host: "*",
		Operation: kmsg.ACLOperationWrite, PermissionType: kmsg.ACLPermissionTypeDeny,
	}, {
		// Any ACL on a topic shuts out who has none: what is not denied is allowed again.
		ResourceType: kmsg.ACLResourceTypeTopic, ResourceName: topic,
		ResourcePatternType: kmsg.ACLResourcePatternTypeLiteral, Principal: "User:*", Host: "*",
		Operation: kmsg.ACLOperationAll, PermissionType: kmsg.ACLPermissionTypeAllow,
	}}
	client := newClient(t, brokers)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	res, err := create.RequestWith(ctx, client)
	if err != nil {
		t.Fatalf("kafkatest: deny %s: %v", topic, err)
	}
	for _, r := range res.Results {
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
			t.Fatalf("kafkatest: deny %s: %v", topic, err)
		}
	}
	await(t, ctx, client, topic)
	var once sync.Once
	allow = func() { once.Do(func() { dropACLs(t, brokers, topic) }) }
	t.Cleanup(allow)
	return allow
}

// await waits until the broker goes by the denial: an ACL is accepted before it is in force.
func await(t testing.TB, ctx context.Context, client *kgo.Client, topic string) {
	t.Helper()
	ask := kmsg.NewPtrMetadataRequest()
	ask.IncludeTopicAuthorizedOperations = true
	ask.Topics = []kmsg.MetadataRequestTopic{{Topic: &topic}}
	const write = 1 << kmsg.ACLOperationWrite
	for {
		res, err := ask.RequestWith(ctx, client)
		if err != nil {
			t.Fatalf("kafkatest: what is allowed on %s: %v", topic, err)
		}
		if len(res.Topics) == 1 && res.Topics[0].ErrorCode == 0 && res.Topics[0].AuthorizedOperations&write == 0 {
			return
		}
	}
}

func dropACLs(t testing.TB, brokers []string, topic string) {
	t.Helper()
	drop := kmsg.NewPtrDeleteACLsRequest()
	drop.Filters = []kmsg.DeleteACLsRequestFilter{{
		ResourceType: kmsg.ACLResourceTypeTopic, ResourceName: &topic,
		ResourcePatternType: kmsg.ACLResourcePatternTypeLiteral, Operation: kmsg.ACLOperationAny,
		PermissionType: kmsg.ACLPermissionTypeAny,
	}}
	client := newClient(t, brokers)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	res, err := drop.RequestWith(ctx, client)
	if err != nil {
		t.Errorf("kafkatest: allow %s: %v", topic, err)
		return
	}
	for _, r := range res.Results {
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
			t.Errorf("kafkatest: allow %s: %v", topic, err)
		}
	}
}
