// Produces in a transaction and consumes in a group, over TLS with SCRAM or with a client certificate.
//
//	secured SERVERS CA TOPIC scram USER PASSWORD
//	secured SERVERS CA TOPIC mtls CERTIFICATE
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

const records = 100

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Second)
	defer cancel()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, arguments []string) error {
	servers, authority, topic := arguments[0], arguments[1], arguments[2]
	options, err := security(authority, arguments[3:])
	if err != nil {
		return err
	}
	options = append(options, kgo.SeedBrokers(strings.Split(servers, ",")...))
	if err := produce(ctx, topic, options); err != nil {
		return err
	}
	count, err := consume(ctx, topic, options)
	if err == nil {
		fmt.Println(count)
	}
	return err
}

func security(authority string, arguments []string) ([]kgo.Opt, error) {
	pem, err := os.ReadFile(authority)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	config.RootCAs.AppendCertsFromPEM(pem)
	options := []kgo.Opt{kgo.DialTLSConfig(config)}
	if arguments[0] == "mtls" {
		certificate, err := tls.LoadX509KeyPair(arguments[1], arguments[1])
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{certificate}
		return options, nil
	}
	user := scram.Auth{User: arguments[1], Pass: arguments[2]}
	return append(options, kgo.SASL(user.AsSha512Mechanism())), nil
}

func produce(ctx context.Context, topic string, options []kgo.Opt) error {
	client, err := kgo.NewClient(append(options, kgo.TransactionalID("go"), kgo.DefaultProduceTopic(topic))...)
	if err != nil {
		return err
	}
	defer client.Close()
	for _, commits := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
		if err := client.BeginTransaction(); err != nil {
			return err
		}
		for number := range records {
			client.Produce(ctx, kgo.StringRecord(fmt.Sprint(commits, number)), nil)
		}
		if err := client.Flush(ctx); err != nil {
			return err
		}
		if err := client.EndTransaction(ctx, commits); err != nil {
			return err
		}
	}
	return nil
}

func consume(ctx context.Context, topic string, options []kgo.Opt) (int, error) {
	group := []kgo.Opt{
		kgo.ConsumerGroup("go"), kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	}
	client, err := kgo.NewClient(append(options, group...)...)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	count := 0
	for count < records {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return count, err
		}
		count += fetches.NumRecords()
	}
	return count, client.CommitUncommittedOffsets(ctx)
}
