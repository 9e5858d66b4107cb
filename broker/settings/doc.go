// Package settings has the settings of topics, consumer groups, addresses and the whole broker,
// with their defaults, their validation and their form in JSON. The broker, its HTTP
// administration and its configuration file use the same types. A PUT over HTTP replaces all
// settings of its subject: a zero field has its default, also when the subject exists.
//
// The package has no state and needs neither the storage engine nor gRPC, so a program that only
// checks or writes settings can import it alone.
//
// The zero value of each type is valid and means the defaults. WithDefaults sets the default of
// each zero field. Validate returns one error that names all fields with an invalid value, each
// with the value and the permitted values.
package settings
