"""One asyncio process that makes all model calls, and the only importer of the model SDK.

usage       what a provider counted, in one form
prices      what that costs, by explicit rates
limits      what a provider said about a credential: writer of its table
provider    the SDK: one call, streamed, its reply or the one reason why there is none
claims      the database side of a call: taking it and parking what cannot be called now
process     the loop: claims, streams, leases, cuts, settlements, the sweep
"""
