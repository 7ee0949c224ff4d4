// Registers, reads, compares and deletes schemas with franz-go's client of the schema registry, and encodes with its Serde.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/sr"
)

const (
	subject = "lines-value"
	first   = `{"type":"record","name":"Line","fields":[{"name":"a","type":"int"}]}`
	second  = `{"type":"record","name":"Line","fields":[{"name":"a","type":"int"},{"name":"b","type":"int","default":0}]}`
	other   = `{"type":"record","name":"Line","fields":[{"name":"a","type":"string"}]}`
)

type line struct {
	A int `json:"a"`
}

func main() {
	if err := tour(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func tour(url, user, password string) error {
	client, err := sr.NewClient(sr.URLs(url), sr.BasicAuth(user, password))
	if err != nil {
		return err
	}
	ctx := context.Background()
	types, err := client.SupportedTypes(ctx)
	if err != nil {
		return fmt.Errorf("types: %w", err)
	}
	created, err := client.CreateSchema(ctx, subject, sr.Schema{Schema: first})
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	for _, each := range client.SetCompatibility(ctx, sr.SetCompatibility{Level: sr.CompatFullTransitive}, subject) {
		if each.Err != nil {
			return fmt.Errorf("set compatibility: %w", each.Err)
		}
	}
	check, err := client.CheckCompatibility(ctx, subject, -1, sr.Schema{Schema: other})
	if err != nil {
		return fmt.Errorf("check: %w", err)
	}
	_, err = client.CreateSchema(ctx, subject, sr.Schema{Schema: other})
	var rejected *sr.ResponseError
	if !errors.As(err, &rejected) {
		return fmt.Errorf("an incompatible schema was accepted: %w", err)
	}
	latest, err := client.CreateSchema(ctx, subject, sr.Schema{Schema: second})
	if err != nil {
		return fmt.Errorf("create the second version: %w", err)
	}
	found, err := client.LookupSchema(ctx, subject, sr.Schema{Schema: first})
	if err != nil {
		return fmt.Errorf("look up: %w", err)
	}
	versions, err := client.SubjectVersions(ctx, subject)
	if err != nil {
		return fmt.Errorf("versions: %w", err)
	}
	usages, err := client.SchemaUsagesByID(ctx, created.ID)
	if err != nil {
		return fmt.Errorf("usages: %w", err)
	}
	decoded, err := roundTrip(created.ID)
	if err != nil {
		return fmt.Errorf("serde: %w", err)
	}
	deleted, err := client.DeleteSubject(ctx, subject, sr.SoftDelete)
	if err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	if _, err = client.DeleteSubject(ctx, subject, sr.HardDelete); err != nil {
		return fmt.Errorf("delete permanently: %w", err)
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"types":      len(types),
		"version":    found.Version,
		"latest":     latest.Version,
		"is_same_id": found.ID == created.ID,
		"compatible": check.Is,
		"rejected":   rejected.ErrorCode,
		"versions":   versions,
		"usages":     len(usages),
		"decoded":    decoded.A,
		"deleted":    deleted,
	})
}

func roundTrip(id int) (line, error) {
	serde := sr.NewSerde()
	serde.Register(id, line{}, sr.EncodeFn(json.Marshal), sr.DecodeFn(json.Unmarshal))
	var decoded line
	encoded, err := serde.Encode(line{A: 7})
	if err != nil {
		return decoded, err
	}
	err = serde.Decode(encoded, &decoded)
	return decoded, err
}
